#!/usr/bin/env bash
# Measures what the developers would like to know of your GPUs, in one go, and writes one folder to send back:
#     bash bench/gpu.sh                    # about 20 minutes on one node; the report is built/gpu-report
#     bash bench/gpu.sh --out FOLDER --pairs PAIRS
#     bash bench/gpu.sh --dry-run          # minutes on a CPU, tiny sizes: shows that the script works
# A part that fails or takes too long is noted, and the others go on. Reports name no host, user or folder.
# The GPU path of this script has not been run by its authors, who have no GPU.
set -u
cd "$(dirname "$0")/.." || exit 2
OUT=built/gpu-report PAIRS=scenes TINY='' LIMIT=600 PYTHON=${PYTHON:-python}
while [ $# -gt 0 ]; do
  case $1 in
    --out) OUT=$2; shift 2 ;;
    --pairs) PAIRS=$2; shift 2 ;;
    --dry-run) TINY=--tiny; LIMIT=240; shift ;;
    *) sed -n '2,8s/^# //p' "$0"; exit 2 ;;
  esac
done
mkdir -p "$OUT/logs" || exit 2
OUT=$(cd "$OUT" && pwd)
rm -f "$OUT"/part-*.json "$OUT"/report.*
PROCESSES=$("$PYTHON" -c 'import torch; print(torch.cuda.device_count())') || exit 2
if [ -n "$TINY" ]; then
  PROCESSES=2
elif [ "$PROCESSES" -eq 0 ]; then
  echo "torch sees no GPU here; --dry-run tries the script on the CPU"; exit 2
fi

part() {  # NAME COMMAND…: runs a part, keeps its output, and notes how it ended
  local name=$1 begun=$SECONDS status; shift
  printf '%-14s' "$name"
  timeout "$LIMIT" "$@" >"$OUT/logs/$name.txt" 2>&1; status=$?
  printf '{"status": %d, "seconds": %d}\n' "$status" $((SECONDS - begun)) >"$OUT/part-$name-status.json"
  if [ $status -eq 0 ]; then echo "$((SECONDS - begun)) s"; else echo "failed ($status), see logs/$name.txt"; fi
}
measure() { part "$1" "$PYTHON" -m bench.gpu_parts "$1" --out "$OUT" --pairs "$PAIRS" $TINY; }

for name in environment agreement waits steps batches compile loss loader teacher; do measure "$name"; done
for count in 1 2 4 8 16; do
  [ "$count" -le "$PROCESSES" ] && part "scaling-$count" "$PYTHON" -m torch.distributed.run --standalone \
    --nproc-per-node "$count" -m -- bench.gpu_parts scaling --out "$OUT" $TINY
done
if [ -z "$TINY" ]; then
  part tests "$PYTHON" -m pytest -q tests/train/test_host_waits.py tests/train/test_step.py tests/losses
fi
"$PYTHON" -m bench.gpu_parts report --out "$OUT" $TINY && echo "send back the folder $OUT"
