#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# plrun and plrund through a real srun: what ranks are given, what is kept of them, what is told.
# What happens when something breaks is in tests/fault/.

load ../lib/cluster
load ../lib/runtime

setup_file() {
    cluster_up 12
}

teardown_file() {
    cluster_down
}

setup() {
    work_dir
}

teardown() {
    scancel_all
    all_well
}

BUILT=$PLUME_SRC/build/tests/cluster

# ---- environment ----

# A rank's view, to NAME.RANK: checked against Slurm's own.
look='
[ "$RANK" = "$SLURM_PROCID" ] && [ "$LOCAL_RANK" = "$SLURM_LOCALID" ] &&
    [ "$NODE_RANK" = "$SLURM_NODEID" ] && [ "$GROUP_RANK" = "$SLURM_NODEID" ] || exit 9
echo "$WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT $PLUME_RUNTIME $PLUME_TRIAL $PLUME_ATTEMPT"
[ -S "$PLUME_SOCKET" ] && [ -d "$PLUME_RUN_DIR/trial-0000" ]'

@test "each rank knows its place, by plrun and by the plugin" {
    for way in plrun plugin; do
        ranks "$way" "$way" -N3 -n7 -- bash -c "$look" &
        ranks "$way-cyclic" "$way" -N3 -n7 -m cyclic -- bash -c "$look" &
    done
    wait
    for way in plrun plugin; do
        checked "$way" "$way-cyclic"
        for name in "$way" "$way-cyclic"; do
            rc_is "$name" 0
            [ "$(cut -d' ' -f1 "$name.out" | sort | uniq -c | tr -s ' ')" = ' 7 7' ]
            # So many ranks on nodes of this size.
            [ "$(cut -d' ' -f2 "$name.out" | sort | uniq -c | awk '{ n += $1 / $2 } END { print n }')" = 3 ]
            # One address and port for all.
            [ "$(cut -d' ' -f3- "$name.out" | sort -u | wc -l)" = 1 ]
            [[ $(head -1 "$name.out") == *" $way 0 0" ]]
        done
    done
}

@test "a step that has no place for its record names the way to one" {
    for way in plrun plugin; do
        as_user mkdir -m 0700 "$way.home"
        as_user mkdir -m 0500 "$way.home/steps"
        ranks "$way" "$way" -N2 -n2 -- true &
    done
    wait
    for way in plrun plugin; do
        rc_is "$way" 1
        grep -F "set PLUME_HOME to a folder that all nodes share: cannot" "$way".err
    done
}

@test "the user's own settings are kept, Plume's are there where he set none" {
    show='echo "$OMP_NUM_THREADS|$NCCL_DEBUG|$NCCL_SOCKET_IFNAME|$NCCL_RAS_ADDR|$MASTER_PORT|$RANK|'
    show+='$JAX_COORDINATOR_ADDRESS"'
    for way in plrun plugin; do
        ranks "$way-none" "$way" -N1 -n2 -c3 -- bash -c "$show" &
        RANK=9 MASTER_PORT=1 OMP_NUM_THREADS=5 NCCL_DEBUG=TRACE NCCL_SOCKET_IFNAME=eth9 \
            NCCL_RAS_ADDR=there:1 JAX_COORDINATOR_ADDRESS=here:1 \
            ranks "$way-own" "$way" -N1 -n1 -- bash -c "$show" &
    done
    PLUME_NCCL_DEBUG=INFO step option -N1 plrun --nccl-ifname =lo --nccl-debug WARN \
        -- bash -c "$show" &
    wait
    for way in plrun plugin; do
        checked "$way-none" "$way-own"
        grep -qxE '3\|\|\|localhost:[0-9]+\|[0-9]+\|[01]\|127.0.0.1:[0-9]+' "$way-none.out"
        [ "$(cut -d'|' -f4 "$way-none.out" | sort -u | wc -l)" = 1 ]
        grep -qxE '5\|TRACE\|eth9\|there:1\|[0-9]{3,}\|0\|here:1' "$way-own.out"
    done
    grep -qE '^[0-9]+\|WARN\|=lo\|' option.out
}

@test "a rank's own plrun only starts its program, but a step of its own is a new one" {
    # shellcheck disable=SC2016 # the ranks'
    show='echo $RANK $WORLD_SIZE $SLURM_STEP_ID; [ "$JAX_COORDINATOR_ADDRESS" != "$OUTER" ] || echo same'
    for way in plrun plugin; do
        ranks "$way-nested" "$way" -N2 -n4 -- plrun -- plrun bash -c "$show" &
        ranks "$way-step" "$way" -N1 -n1 -c4 -- bash -c "
            export OUTER=\$JAX_COORDINATOR_ADDRESS
            srun --overlap -N1 -n2 -c1 plrun -- bash -c '$show'; srun --overlap -N1 -n2 -c1 --plume bash -c '$show'
            srun --overlap -N1 -n2 -c1 bash -c 'echo \"plain \$RANK\$MASTER_PORT\$PLUME_SOCKET\$JAX_COORDINATOR_ADDRESS\"'" &
    done
    wait
    for way in plrun plugin; do
        checked "$way-nested"
        [ "$(sort "$way-nested.out")" = "$(printf '%s 4 0\n' 0 1 2 3)" ]
        rc_is "$way-step" 0
        [ "$(sort "$way-step.out")" = "$(printf '%s\n' '0 2 1' '0 2 2' '1 2 1' '1 2 2' 'plain ' 'plain ')" ]
        set -- "$way-step.home"/steps/*
        [ $# = 3 ] # and nothing of theirs in the folder of the step that they came from
        cmp "$way-step.out" "$1/trial-0000/attempt-0/rank-0.out"
    done
}

@test "a node may have more ranks than the soft limit of files would bear" {
    for way in plrun plugin; do
        (
            ulimit -Sn 64
            ranks "$way" "$way" -N1 -n24 -- bash -c 'ulimit -Sn; echo $RANK >&2'
        ) &
    done
    wait
    for way in plrun plugin; do
        rc_is "$way" 0
        [ "$(sort -u "$way.out")" = 64 ]
        [ "$(cat "$way.home"/steps/*/trial-0000/attempt-0/rank-*.err | sort -n)" = "$(seq 0 23)" ]
    done
}

@test "a hard limit of files that is too low for a node's ranks is told before they start" {
    step low -N1 -n8 prlimit --nofile=100:100 plrun -- touch "$WORK/ran" &
    step enough -N1 -n8 prlimit --nofile=101:101 plrun -- true &
    wait
    [ "$(<low.rc)" != 0 ]
    [ ! -e ran ]
    grep -qF 'at most 100 files may be open on this node, but 8 ranks and the runtime need 101: raise the hard limit' low.err
    rc_is enough 0
}

@test "a PLUME_ variable that nothing reads is warned about once per step" {
    export PLUME_KILL_GRAECE=3 PLUME_PARAM_LR=1
    for way in plrun plugin; do
        ranks "$way" "$way" -N3 -n7 -- true &
    done
    wait
    for way in plrun plugin; do
        rc_is "$way" 0
        warning="unknown environment variable 'PLUME_KILL_GRAECE': did you mean PLUME_KILL_GRACE?"
        [ "$(grep -cF "$warning" "$way.err")" = 1 ]
        [ "$(grep -c 'unknown environment variable' "$way.err")" = 1 ]
    done
}

@test "everything works without the plugin" {
    cp "$CLUSTER_DIR/plugstack.conf" saved.conf
    : >"$CLUSTER_DIR/plugstack.conf"
    ranks none plrun -N3 -n7 -- bash -c "$look"
    cp saved.conf "$CLUSTER_DIR/plugstack.conf"
    rc_is none 0
    checked none
}

@test "as root too" {
    need_root
    AS=root ranks root plrun -N2 -n2 -- bash -c "$look" &
    AS=root ranks plugin plugin -N2 -n2 -- bash -c "$look" &
    wait
    rc_is root 0
    rc_is plugin 0
    checked root plugin
    [ "$(stat -c %U "$(trial root)/result.json")" = root ]
}

@test "in a batch job with several steps, each has a world of its own" {
    job=$(PLUME_HOME=$WORK/batch as_user sbatch --parsable -N2 -o batch.out --wrap '
        for i in 1 2 3; do srun -Q --exact -N2 -n2 -c1 plrun -- bash -c "echo step \$RANK \$MASTER_PORT" & done
        wait; srun plrun -- bash -c "exit \$((RANK * 4))"')
    job_wait "$job"
    [ "$(job_field "$job" ExitCode)" = 4:0 ]
    grep '^step' batch.out
    [ "$(grep -c '^step' batch.out)" = 6 ]
    [ "$(grep '^step' batch.out | cut -d' ' -f3 | sort -u | wc -l)" = 3 ]
    "$PLUME_SRC/tests/lib/check-run.py" batch/steps/*/trial-0000
    [ "$(find batch/steps -name result.json | wc -l)" = 4 ]
}

# ---- output ----

@test "a rank's files hold exactly its bytes, and srun gives them too" {
    # shellcheck disable=SC2016 # the rank's
    program='python3 -c "
import os, sys
rank = int(os.environ[\"RANK\"])
out = [b\"no newline\", bytes(range(256)) * 41943, b\"\", b\"\\0\"][rank]
err = [b\"\", bytes(range(255, -1, -1)) * 41943, b\"only\\n\\n\", b\"\\xff\\xfe\"][rank]
for fd, data in ((1, out), (2, err)):
    open(f\"want-{rank}.{fd}\", \"wb\").write(data)
    while data:
        data = data[os.write(fd, data):]
"'
    for way in plrun plugin; do
        ranks "$way" "$way" -N2 -n4 -o "$way-%t.1" -e "$way-%t.2" -- bash -c "$program"
        rc_is "$way" 0
        checked "$way"
        for rank in 0 1 2 3; do
            cmp "$(trial "$way")/attempt-0/rank-$rank.out" "want-$rank.1"
            cmp "$(trial "$way")/attempt-0/rank-$rank.err" "want-$rank.2"
            cmp "$way-$rank.1" "want-$rank.1"
            cmp "$way-$rank.2" "want-$rank.2"
        done
        [ "$(stat -c %s "$(trial "$way")/attempt-0/rank-1.out")" -gt 10000000 ]
    done
}

@test "srun -u: stdout is a terminal, stderr is recorded" {
    for way in plrun plugin; do
        ranks "$way" "$way" -Q -u -n1 -- bash -c \
            'test -t 1 && echo terminal; test -p /dev/stderr && echo pipe >&2'
        rc_is "$way" 0
        [[ $(<"$way.out") == terminal* ]]
        [ "$(<"$way.err")" = pipe ]
        [ "$(<"$(trial "$way")/attempt-0/rank-0.err")" = pipe ]
    done
}

@test "a rank whose output nobody reads any more still ends well" {
    step cut -N1 -o /dev/full plrun -- bash -c 'head -c 3000000 /dev/zero; echo end >&2'
    [ "$(stat -c %s "$(trial cut)/attempt-0/rank-0.out")" = 3000000 ]
    grep -qx end "$(trial cut)/attempt-0/rank-0.err"
}

@test "stdin reaches rank 0" {
    head -c 300000 /dev/urandom >in
    step stdin -N1 plrun -- sha256sum <in
    [ "$(<stdin.out)" = "$(sha256sum <in)" ]
}

# ---- ports ----

@test "ranks meet at MASTER_PORT, which nobody else gets" {
    for i in 1 2 3; do
        ranks "plrun-$i" plrun -N3 -n6 -- "$BUILT/master-port" &
    done
    ranks plugin plugin -N3 -n6 -- "$BUILT/master-port" &
    wait
    for name in plrun-1 plrun-2 plrun-3 plugin; do
        rc_is "$name" 0
        checked "$name"
    done
}

@test "MASTER_PORT can be told, and a taken one is passed over" {
    # Two neighbours that are free, found by taking them.
    read -r low high < <(python3 -c '
import socket
while True:
    a, b = socket.socket(), socket.socket()
    a.bind(("", 0))
    low = a.getsockname()[1]
    try:
        b.bind(("", low + 1))
    except OSError:
        continue
    print(low, low + 1)
    break')
    show='echo $MASTER_PORT'
    step one -N2 plrun --master-port "$low-$high" -- bash -c "$show"
    [ "$(sort -u one.out)" = "$low" ]
    python3 -c '
import socket, sys
s = socket.socket()
s.bind(("", int(sys.argv[1])))
s.listen()
print("listens", flush=True)
sys.stdin.read()' "$low" < <(exec tail -f --pid=$$ /dev/null) >stranger 3>&- &
    stranger=$!
    wait_for 10 grep -q listens stranger
    step two -N2 plrun --master-port "$low-$high" -- bash -c "$show" &
    step none -N2 plrun --master-port "$low-$low" -- bash -c "$show" &
    wait %2 %3
    kill "$stranger"
    [ "$(sort -u two.out)" = "$high" ]
    rc_is none 0
    grep -q "MASTER_PORT: no free port between $low and $low; taking another" none.err
    [ "$(sort -u none.out)" != "$low" ]
    step bad -N1 plrun --master-port 5-1 -- true
    rc_is bad 2
    grep -q -- '--master-port' bad.err
}

# side_by_side COUNT NODES WAY: so many jobs are alive at once, and none has the port of another.
side_by_side() {
    local count=$1 nodes=$2 way=$3 i
    gate
    for ((i = 0; i < count; i++)); do
        # shellcheck disable=SC2016 # the rank's
        ranks "job-$i" "$way" -Q "-N$nodes" "-n$nodes" -- bash -c \
            'me=$SLURM_JOB_ID.$RANK; echo $MASTER_PORT >"new.$me" && mv "new.$me" "at.$me" && read -r _ <gate' &
    done
    wait_for 200 at_least $((count * nodes)) 'at.*'
    [ "$(cat at.*.0 | sort -u | wc -l)" = "$count" ]
    gate_open $((count * nodes))
    wait
    for ((i = 0; i < count; i++)); do
        rc_is "job-$i" 0
        names+=("job-$i")
    done
    checked "${names[@]}"
    if ((nodes > 1)); then
        for i in at.*.0; do
            cmp "$i" "${i%.0}.1"
        done
    fi
}

@test "100 jobs of one node side by side on one host" {
    side_by_side 100 1 plrun
}

@test "50 jobs of two nodes side by side on one host" {
    side_by_side 50 2 plrun
}

@test "20 jobs of two nodes side by side with the plugin" {
    side_by_side 20 2 plugin
}

# ---- signals ----

# counter.py [SIGNAL]: counts SIGUSR1, or this one, until the gate opens.
counter_py() {
    cat >counter.py <<'PY'
import os, signal, sys
me = f"{os.environ['SLURM_JOB_ID']}.{os.environ['RANK']}"
count = 0
def on_signal(*_):
    global count
    count += 1
    open(f"count.{me}.{count}", "w").close()
signal.signal(getattr(signal, sys.argv[1] if sys.argv[1:] else "SIGUSR1"), on_signal)
open(f"at.{me}", "w").close()
gate = os.open("gate", os.O_RDWR)
os.read(gate, 1)
PY
}

@test "a signal reaches each rank exactly once" {
    counter_py
    gate
    for way in plrun plugin; do
        ranks "$way" "$way" -J "$way" -N2 -n4 -- python3 counter.py &
    done
    # A script that has started plrun outlives the signal, and passes nothing on.
    step shell -J shell -N2 -n4 bash -c 'trap : USR1; "$@"; exit $?' bash plrun -- python3 counter.py &
    PLUME_SAVE_COMMAND=: ranks save plrun -J save -N2 -n4 -- python3 counter.py SIGHUP &
    wait_for 30 at_least 16 'at.*'
    for way in plrun plugin shell; do
        scancel -s USR1 "$(squeue -h -n "$way" -o %A).0"
    done
    scancel -s HUP "$(squeue -h -n save -o %A).0"
    wait_for 20 at_least 16 'count.*.1'
    job=$(squeue -h -n plrun -o %A)
    # By hand, to the guard of rank 0.
    for pid in $(pids_of plrun "$(scontrol show hostnames "$(squeue -h -n plrun -o %N)" | head -1)"); do
        [ "$(tr '\0' '\n' <"/proc/$pid/environ" | grep -cx "SLURM_PROCID=0\|SLURM_JOB_ID=$job")" = 2 ] &&
            kill -USR1 "$pid"
    done
    wait_for 20 test -e "count.$job.0.2"
    gate_open 16
    wait
    rc_is plrun 0
    rc_is plugin 0
    checked plrun plugin shell save
    # Not a second time, late.
    [ "$(compgen -G 'count.*.[0-9]' | wc -l)" = 17 ]
    [ ! -e "count.$job.0.3" ]
}

@test "a step that outlives SIGTERM ends, and is done" {
    counter_py
    gate
    ranks one plrun -J one -N1 -n1 -- python3 counter.py SIGTERM &
    ranks more plrun -J more -N2 -n4 -- python3 counter.py SIGTERM &
    wait_for 30 at_least 5 'at.*'
    for name in one more; do
        scancel -s TERM "$(squeue -h -n "$name" -o %A).0"
    done
    wait_for 20 at_least 5 'count.*.1'
    gate_open 5
    wait_for 30 test -s one.rc
    wait_for 30 test -s more.rc
    wait
    rc_is one 0
    rc_is more 0
    checked one more
    for name in one more; do
        [ "$(result "$name" 'd["state"], d.get("cause")')" = "('done', None)" ]
        id=$(basename "$(dirname "$(trial "$name")")")
        PLUME_HOME=$WORK/$name.home as_user plstat show "$id" --json | tee shown
        [ "$(json shown 'd["state"]')" = "done" ]
    done
}

@test "a program's own word of a signal holds the step up for nothing" {
    report_py
    ranks said plrun -N1 -n2 -- python3 report.py '{"type":"signalled","signal":15}' &
    wait_for 30 test -s said.rc
    wait
    rc_is said 0
    checked said
    [ "$(result said 'd["state"], d.get("cause")')" = "('done', None)" ]
}

# ---- metrics ----

@test "metrics are found in the output, by each rank's own file" {
    step regex -N2 -n2 plrun --metric 'loss=loss: ([0-9.e+-]+)' --metric 'acc=^acc ([a-z0-9.]+)' \
        --metric 'step=step ([0-9]+)' -- bash -c '
        for i in 1 2 3; do echo "step $i loss: 0.$RANK$i"; done; echo "acc nan" >&2; printf "loss: 1e-3"'
    rc_is regex 0
    checked regex
    [ "$(result regex 'sorted(d["metrics"].items()), d["step"]')" = "([('acc', 'nan'), ('loss', 0.001)], 3)" ]
    [ "$(state regex '[r["step"] for r in s["ranks"]]')" = '[3, 3]' ]
    PLUME_METRIC='loss=loss (.*)' ranks plugin plugin -N2 -n2 --plume-metric='x=x=([0-9]+)' -- \
        bash -c 'echo loss 7; echo "x=$((RANK + 1))"'
    rc_is plugin 0
    checked plugin
    [ "$(state plugin '[r["metrics"]["x"] for r in s["ranks"]]')" = '[1.0, 2.0]' ]
    step bad -N1 plrun --metric 'loss=(' -- true
    rc_is bad 2
}

# A rank's report by the socket: report.py LINE... sends them after its hello.
report_py() {
    cat >report.py <<'PY'
import json, os, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(os.environ["PLUME_SOCKET"])
hello = {"type": "hello", "proto": "plume", "major": 1, "minor": 0, "role": "program",
         "rank": int(os.environ["RANK"]), "pid": os.getpid()}
s.sendall((json.dumps(hello) + "\n").encode())
for line in sys.argv[1:]:
    s.sendall(line.encode() + b"\n")
s.close()
PY
}

@test "metrics by the socket are in status.json while the rank runs, and in the result" {
    report_py
    gate
    ranks live plrun -N2 -n2 -- bash -c '
        python3 report.py "{\"type\":\"metrics\",\"step\":$((RANK + 5)),\"metrics\":{\"loss\":0.5,\"bad\":\"inf\"}}" \
            "{\"type\":\"fact\",\"key\":\"param_hash\",\"value\":\"abc\"}"
        read -r _ <gate
        python3 report.py "{\"type\":\"metrics\",\"metrics\":{\"loss\":0.25}}"' &
    live() {
        [[ $(state live '[r.get("step") for r in s["ranks"]]' 2>&1) == '[5, 6]' ]]
    }
    wait_for 20 live
    [ "$(state live 's["state"]')" = running ]
    gate_open 2
    wait
    rc_is live 0
    checked live
    [ "$(result live 'd["metrics"], d["step"], d["param_hash"], d["params_equal"]')" = \
        "({'loss': 0.25, 'bad': 'inf'}, 6, 'abc', True)" ]
}

# ---- guests on the rank socket ----

@test "nonsense on the rank socket disturbs nobody" {
    report_py
    cat >pest.py <<'PY'
import os, socket
def send(data, hello=False):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(20)
    s.connect(os.environ["PLUME_SOCKET"])
    try:
        for part in data:
            s.sendall(part)
        while s.recv(65536):
            pass
    except OSError:
        pass
    s.close()
def hello(**more):
    import json
    h = {"type": "hello", "proto": "plume", "major": 1, "minor": 0, "role": "program", "rank": 0}
    h.update(more)
    return json.dumps(h).encode() + b"\n"
idle = socket.socket(socket.AF_UNIX) # no hello: closed after two seconds
idle.connect(os.environ["PLUME_SOCKET"])
send([b"GET / HTTP/1.0\r\n\r\n"])
send([b"\0\xff\xfe\n"])
send([b"[]\n"])
send([b'{"type":"hello","type":"hello"}\n'])
send([hello(rank=99)])
send([hello(rank=-1)])
send([hello(rank=1e300)])
send([hello(major=2)])
send([hello(role="starter")]) # the rank has one
send([hello(role="starter", rank=1)]) # of another node
send([b"x" * 70000])
send([hello(), b'{"a":' * 100 + b"\n"])
send([hello(), b'{"type":"metrics","metrics":{"' + b"y" * 70000 + b'":1}}\n'])
send([hello(), b'{"type":"metrics","metrics":[1]}\n{"type":"metrics","step":"x"}\n{"type":"exited"}\n'
      b'{"type":"fact"}\n{"type":"exchange"}\n{"type":"fact","key":1,"value":{}}\n'
      b'{"type":"metrics","step":3,"metrics":{"a b":1,"ok":2,"deep":{"x":1}}}\n{"\\u0000":1}\n'])
idle.settimeout(20)
assert idle.recv(1) == b""
# A type of a newer version: told so, and skipped.
new = socket.socket(socket.AF_UNIX)
new.settimeout(20)
new.connect(os.environ["PLUME_SOCKET"])
new.sendall(hello(extra=[1]) + b'{"type":"dance","x":1}\n{"type":"metrics","new":1,"metrics":{"late":3}}\n')
assert b'"error"' in new.recv(65536)
PY
    ranks pest plrun -N1 -n2 -- bash -c 'if [ $RANK = 0 ]; then exec python3 pest.py; fi
        exec python3 report.py "{\"type\":\"metrics\",\"metrics\":{\"good\":1}}"'
    cat pest.err
    rc_is pest 0
    checked pest
    result pest 'd["metrics"]'
    [ "$(result pest 'sorted(d["metrics"].items())')" = "[('good', 1), ('late', 3), ('ok', 2)]" ]
}

@test "another user reaches neither socket nor run folder" {
    need_root
    gate
    ranks private plrun -N1 -- bash -c 'echo $PLUME_SOCKET >socket && read -r _ <gate' &
    wait_for 20 test -s socket
    run setpriv --reuid 65533 --regid 65533 --clear-groups /usr/bin/python3 -c '
import socket, sys
try:
    socket.socket(socket.AF_UNIX).connect(sys.argv[1])
except OSError as e:
    print(e.errno)' "$(<socket)"
    echo "$output"
    [ "$output" = 13 ]
    [ "$(stat -c %a "$(<socket)")" = 600 ]
    [ "$(stat -c %a "$(dirname "$(<socket)")")" = 700 ]
    [ "$(stat -c %a private.home/key "$(trial private)/../key" | sort -u)" = 600 ]
    # Root may go anywhere, but it is not the user whom the daemon serves.
    run python3 -c '
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.settimeout(10)
try:
    print(len(s.recv(1)))
except OSError:
    print(0)' "$(<socket)"
    [ "$output" = 0 ]
    gate_open 1
    wait
    rc_is private 0
    checked private
}

@test "the key is in no environment, argument, log or file but its own" {
    gate
    key=canary-$SRANDOM-canary-canary-canary
    key=${key:0:32}
    as_user sh -c "umask 077 && printf %s '$key' >key"
    export PLUME_KEY_FILE=$WORK/key PLUME_LOG=debug
    for way in plrun plugin; do
        ranks "$way" "$way" -N2 -n2 -- bash -c ': >at.$PLUME_RUNTIME.$RANK; read -r _ <gate' &
    done
    wait_for 30 at_least 4 'at.*'
    forms=$(printf '%s\n' "$key" "$(printf %s "$key" | od -An -tx1 | tr -d ' \n')" "$(printf %s "$key" | base64 -w0)")
    printf '%s\n' "$forms" >"$BATS_TEST_TMPDIR/forms"
    run grep -slaiFf "$BATS_TEST_TMPDIR/forms" /proc/[0-9]*/environ /proc/[0-9]*/cmdline
    echo "$output"
    [ "$output" = '' ]
    gate_open 4
    wait
    rc_is plrun 0
    rc_is plugin 0
    grep -q 'plrund\[' plrun.err
    run grep -rlaiFf "$BATS_TEST_TMPDIR/forms" "$WORK" "$CLUSTER_DIR/log"
    [ "$(grep -vE '/key$' <<<"$output")" = '' ]
    checked plrun plugin
}
