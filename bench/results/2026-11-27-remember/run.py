import subprocess,sys,time,os,json,statistics,shutil
lab=os.path.abspath('target/release/outrider-lab'); O=os.path.abspath('target/release/outrider'); disk='/tmp/rem'
model,name,rounds=sys.argv[1],sys.argv[2],int(sys.argv[3]); C=sys.argv[4:]
cwd='/tmp/rem'
def cold(): subprocess.run([lab,'disk','cold',disk],check=True,stdout=subprocess.DEVNULL)
def t(cmd,c=True):
    if c: cold()
    s=time.time(); r=subprocess.run(cmd,cwd='/',stdout=subprocess.DEVNULL,stderr=subprocess.DEVNULL); e=time.time()-s
    assert r.returncode==0,(cmd,r)
    return e
subprocess.run([lab,'disk','model',disk,model],check=True,stdout=subprocess.DEVNULL)
rows={k:[] for k in ['stock','ours','first','second','third','warm','warm ours','warm remember','vmtouch']}
P='/tmp/rem-x/bench.profile'; R=[O,'run','--remember='+P,'--']
load=[]
t(C)
for i in range(rounds):
    load.append(os.getloadavg()[0])
    shutil.rmtree('/tmp/rem-x',ignore_errors=True)
    rows['stock'].append(t(C)); rows['ours'].append(t([O,'run','--']+C)); rows['first'].append(t(R+C)); rows['second'].append(t(R+C)); rows['third'].append(t(R+C))
    rows['warm'].append(t(C,False)); rows['warm ours'].append(t([O,'run','--']+C,False)); rows['warm remember'].append(t(R+C,False))
    files=subprocess.run([O,'profile','export',P,'--paths'],capture_output=True,text=True).stdout.split('\n')
    files=[f for f in files if f.startswith('/tmp/rem/')]
    if shutil.which('vmtouch'):
        open('/tmp/rem-l','w').write('\n'.join(files)); rows['vmtouch'].append(t(['sh','-c','xargs -a /tmp/rem-l vmtouch -qt && exec "$0" "$@"']+C))
out={'workload':name,'model':model,'command':C,'load':load,'rows':rows,'bytes':os.path.getsize(P)}
s=json.loads(subprocess.run([O,'profile','show',P,'--json'],capture_output=True,text=True).stdout); out['profile']={k:s[k] for k in ('needs','bytes','runs')}
d=os.path.dirname(os.path.abspath(__file__)); os.makedirs(d,exist_ok=True)
json.dump(out,open(f'{d}/{name}-{model}.json','w'),indent=1)
print(name,model,{k:round(statistics.median(v),3) for k,v in rows.items() if v},out['profile'],out['bytes'],'load',[round(l,1) for l in load],flush=True)
