/* near FILE BLOCK COUNT seq|random [BLOCKS]: goes through FILE in blocks of BLOCK bytes, in order or in random order, and reads COUNT random pages of each; prints its time, µs. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
static unsigned long x=88172645463325252ul; static unsigned long rnd(void){x^=x<<13;x^=x>>7;x^=x<<17;return x;}
int main(int c,char**v){ int fd=open(v[1],O_RDONLY); struct stat st; fstat(fd,&st); long block=atol(v[2]),count=atol(v[3]); int random=!strcmp(v[4],"random"); long max=c>5?atol(v[5]):1<<30;
 long n=st.st_size/block; long*o=malloc(n*sizeof*o); for(long i=0;i<n;i++)o[i]=i; if(random)for(long i=n-1;i>0;i--){long j=rnd()%(i+1),t=o[i];o[i]=o[j];o[j]=t;}
 if(n>max)n=max; static char b[4096]; struct timespec a,e; clock_gettime(CLOCK_MONOTONIC,&a); unsigned long s=0;
 for(long i=0;i<n;i++)for(long k=0;k<count;k++){pread(fd,b,4096,o[i]*block+(rnd()%(block/4096))*4096);s+=b[17];}
 clock_gettime(CLOCK_MONOTONIC,&e); printf("%ld %lu\n",(e.tv_sec-a.tv_sec)*1000000+(e.tv_nsec-a.tv_nsec)/1000,s);}
