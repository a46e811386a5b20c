# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_outrider_global_optspecs
    string join \n h/help V/version
end

function __fish_outrider_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_outrider_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_outrider_using_subcommand
    set -l cmd (__fish_outrider_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c outrider -n "__fish_outrider_needs_command" -s h -l help -d 'Print help'
complete -c outrider -n "__fish_outrider_needs_command" -s V -l version -d 'Print version'
complete -c outrider -n "__fish_outrider_needs_command" -f -a "run" -d 'Run a program with its reads foreseen'
complete -c outrider -n "__fish_outrider_needs_command" -f -a "try" -d 'Run a program without and with its reads foreseen, on cold files, and say what came of it'
complete -c outrider -n "__fish_outrider_needs_command" -f -a "report" -d 'Have a run that goes on write its report\'s file now'
complete -c outrider -n "__fish_outrider_needs_command" -f -a "cached" -d 'Show how much of files or trees is in the page cache'
complete -c outrider -n "__fish_outrider_needs_command" -f -a "warm" -d 'Read files or trees into the page cache, in the order in which they lie on the device'
complete -c outrider -n "__fish_outrider_needs_command" -f -a "evict" -d 'Drop clean pages of files or trees from the page cache'
complete -c outrider -n "__fish_outrider_needs_command" -f -a "probe" -d 'Measure the device under a file or directory and show what the planner will assume'
complete -c outrider -n "__fish_outrider_needs_command" -f -a "doctor" -d 'Show what this machine and a program allow, and what is lost by each no'
complete -c outrider -n "__fish_outrider_needs_command" -f -a "graph" -d 'Look at the foreaction graphs of plug-ins and programs, and check them'
complete -c outrider -n "__fish_outrider_needs_command" -f -a "profile" -d 'Look at what jobs are remembered to need (run --remember), and take it elsewhere'
complete -c outrider -n "__fish_outrider_needs_command" -f -a "help" -d 'Show the flags of a command'
complete -c outrider -n "__fish_outrider_using_subcommand run" -l mode -d 'What is prefetched; predict+opt where nothing else is said' -r -f -a "os-only\t'The kernel alone: the program\'s own hints are dropped'
app-only\t'The kernel and the program\'s own hints; nothing is predicted'
predict\t'Patterns are recognised and prefetched'
predict+opt\t'As predict, and aggressively while there is memory'
fetchall+opt\t'Every opened file is fetched as a whole while there is memory'"
complete -c outrider -n "__fish_outrider_using_subcommand run" -l engine -d 'How requests are issued; auto where nothing else is said' -r -f -a "auto\t'The kernel module\'s calls where it is loaded, and threads otherwise'
uring\t'Batches through io_uring'
threads\t'Readahead calls by a pool of up to four threads'
readahead\t'The same by one thread'
noop\t'Nothing is issued; everything else happens'"
complete -c outrider -n "__fish_outrider_using_subcommand run" -l budget -d 'Memory that prefetched and not yet used data may take, such as 512M' -r
complete -c outrider -n "__fish_outrider_using_subcommand run" -l config -d 'Settings, in TOML' -r -F
complete -c outrider -n "__fish_outrider_using_subcommand run" -l report -d 'Say at the end what was prefetched, used and wasted; with =FILE write it as JSON, and for a FILE that ends in .prom as metrics for Prometheus. =- is as without a FILE' -r -F
complete -c outrider -n "__fish_outrider_using_subcommand run" -l report-every -d 'Write the report\'s file every so many seconds, too, 1 to 86400' -r
complete -c outrider -n "__fish_outrider_using_subcommand run" -l explain -d 'Write into FILE what was fetched ahead and why, what came of it, and why files were left alone, a line for each decision' -r -F
complete -c outrider -n "__fish_outrider_using_subcommand run" -l record -d 'Write into FILE all that the service sees and does, from which `outrider-lab replay` drives it again; no directories are run ahead of then' -r -F
complete -c outrider -n "__fish_outrider_using_subcommand run" -l remember -d 'Remember what this job reads, and fetch that ahead in its next runs. Without =NAME the name is made of the command and the directory; a name with a slash is a file' -r
complete -c outrider -n "__fish_outrider_using_subcommand run" -l plugin -d 'Load a plug-in with foreaction graphs into the program and those that it starts: a file, or the name of one that is installed, such as du; may be repeated' -r -F
complete -c outrider -n "__fish_outrider_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c outrider -n "__fish_outrider_using_subcommand try" -s n -l rounds -d 'How often each way is measured, 1 to 99' -r
complete -c outrider -n "__fish_outrider_using_subcommand try" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c outrider -n "__fish_outrider_using_subcommand report" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c outrider -n "__fish_outrider_using_subcommand cached" -l json -d 'Write JSON'
complete -c outrider -n "__fish_outrider_using_subcommand cached" -l summary -d 'A line for each PATH'
complete -c outrider -n "__fish_outrider_using_subcommand cached" -l all -d 'A line for each file, however many there are. Without it the files of a large tree are summed up by directory'
complete -c outrider -n "__fish_outrider_using_subcommand cached" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c outrider -n "__fish_outrider_using_subcommand warm" -l profile -d 'Read what a remembered job needs instead' -r
complete -c outrider -n "__fish_outrider_using_subcommand warm" -l budget -d 'Stop after this much, such as 512M. Without it: half of the available memory, or 90 % of what the tightest cgroup limit leaves, whichever is less' -r
complete -c outrider -n "__fish_outrider_using_subcommand warm" -l jobs -d 'Threads that ask the device and wait for it, 1 to 16. How much is on its way is found out, whatever their number' -r
complete -c outrider -n "__fish_outrider_using_subcommand warm" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c outrider -n "__fish_outrider_using_subcommand evict" -s h -l help -d 'Print help'
complete -c outrider -n "__fish_outrider_using_subcommand probe" -l json -d 'Write JSON'
complete -c outrider -n "__fish_outrider_using_subcommand probe" -l save -d 'Keep what was measured: `outrider run` begins with it on this file system, instead of with a guess'
complete -c outrider -n "__fish_outrider_using_subcommand probe" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c outrider -n "__fish_outrider_using_subcommand doctor" -l at -d 'A file or directory, of whose file system is told what it allows. Without it: the current directory' -r -F
complete -c outrider -n "__fish_outrider_using_subcommand doctor" -l json -d 'Write JSON'
complete -c outrider -n "__fish_outrider_using_subcommand doctor" -s h -l help -d 'Print help'
complete -c outrider -n "__fish_outrider_using_subcommand graph; and not __fish_seen_subcommand_from check show" -s h -l help -d 'Print help'
complete -c outrider -n "__fish_outrider_using_subcommand graph; and not __fish_seen_subcommand_from check show" -f -a "check" -d 'Run a program with nothing made ahead, and compare every call that its graphs foresee with what it does'
complete -c outrider -n "__fish_outrider_using_subcommand graph; and not __fish_seen_subcommand_from check show" -f -a "show" -d 'Print the graphs that plug-ins build, in Graphviz\'s language'
complete -c outrider -n "__fish_outrider_using_subcommand graph; and __fish_seen_subcommand_from check" -l plugin -d 'A plug-in; may be repeated. Without one, the program\'s own graphs are checked' -r -F
complete -c outrider -n "__fish_outrider_using_subcommand graph; and __fish_seen_subcommand_from check" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c outrider -n "__fish_outrider_using_subcommand graph; and __fish_seen_subcommand_from show" -l plugin -d 'A plug-in; may be repeated' -r -F
complete -c outrider -n "__fish_outrider_using_subcommand graph; and __fish_seen_subcommand_from show" -l text -d 'Print a line for each node instead'
complete -c outrider -n "__fish_outrider_using_subcommand graph; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c outrider -n "__fish_outrider_using_subcommand profile; and not __fish_seen_subcommand_from list show check merge prune export import" -s h -l help -d 'Print help'
complete -c outrider -n "__fish_outrider_using_subcommand profile; and not __fish_seen_subcommand_from list show check merge prune export import" -f -a "list" -d 'List the profiles that there are'
complete -c outrider -n "__fish_outrider_using_subcommand profile; and not __fish_seen_subcommand_from list show check merge prune export import" -f -a "show" -d 'Show what a job needs, and when'
complete -c outrider -n "__fish_outrider_using_subcommand profile; and not __fish_seen_subcommand_from list show check merge prune export import" -f -a "check" -d 'Say how much of a profile still fits, and what the next run would gain'
complete -c outrider -n "__fish_outrider_using_subcommand profile; and not __fish_seen_subcommand_from list show check merge prune export import" -f -a "merge" -d 'Take what other profiles know into one'
complete -c outrider -n "__fish_outrider_using_subcommand profile; and not __fish_seen_subcommand_from list show check merge prune export import" -f -a "prune" -d 'Drop from a profile what is gone or hardly ever needed, or remove profiles that nobody has used for long'
complete -c outrider -n "__fish_outrider_using_subcommand profile; and not __fish_seen_subcommand_from list show check merge prune export import" -f -a "export" -d 'Write a profile to standard output, in a form for elsewhere'
complete -c outrider -n "__fish_outrider_using_subcommand profile; and not __fish_seen_subcommand_from list show check merge prune export import" -f -a "import" -d 'Take in a profile that was exported with --portable'
complete -c outrider -n "__fish_outrider_using_subcommand profile; and __fish_seen_subcommand_from list" -l json -d 'Write JSON'
complete -c outrider -n "__fish_outrider_using_subcommand profile; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c outrider -n "__fish_outrider_using_subcommand profile; and __fish_seen_subcommand_from show" -l json -d 'Write JSON'
complete -c outrider -n "__fish_outrider_using_subcommand profile; and __fish_seen_subcommand_from show" -l svg -d 'Draw it, as SVG'
complete -c outrider -n "__fish_outrider_using_subcommand profile; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c outrider -n "__fish_outrider_using_subcommand profile; and __fish_seen_subcommand_from check" -l json -d 'Write JSON'
complete -c outrider -n "__fish_outrider_using_subcommand profile; and __fish_seen_subcommand_from check" -s h -l help -d 'Print help'
complete -c outrider -n "__fish_outrider_using_subcommand profile; and __fish_seen_subcommand_from merge" -s h -l help -d 'Print help'
complete -c outrider -n "__fish_outrider_using_subcommand profile; and __fish_seen_subcommand_from prune" -l unused -d 'Remove profiles of which no run has made use for so many days' -r
complete -c outrider -n "__fish_outrider_using_subcommand profile; and __fish_seen_subcommand_from prune" -s h -l help -d 'Print help'
complete -c outrider -n "__fish_outrider_using_subcommand profile; and __fish_seen_subcommand_from export" -l root -d 'Only what lies below this directory, relative to it' -r -F
complete -c outrider -n "__fish_outrider_using_subcommand profile; and __fish_seen_subcommand_from export" -l portable -d 'A profile with paths below --root, for `outrider profile import`'
complete -c outrider -n "__fish_outrider_using_subcommand profile; and __fish_seen_subcommand_from export" -l paths -d 'A list of files in the order of need, a line each'
complete -c outrider -n "__fish_outrider_using_subcommand profile; and __fish_seen_subcommand_from export" -l ranges -d 'The same with ranges: path, first byte, bytes, separated by tabs'
complete -c outrider -n "__fish_outrider_using_subcommand profile; and __fish_seen_subcommand_from export" -s h -l help -d 'Print help'
complete -c outrider -n "__fish_outrider_using_subcommand profile; and __fish_seen_subcommand_from import" -l root -d 'The directory that its paths begin at' -r -F
complete -c outrider -n "__fish_outrider_using_subcommand profile; and __fish_seen_subcommand_from import" -s h -l help -d 'Print help'
complete -c outrider -n "__fish_outrider_using_subcommand help" -s h -l help -d 'Print help'
