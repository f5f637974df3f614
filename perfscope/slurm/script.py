"""The batch script of a job: a header for sbatch, the environment, the clean-run protocol, `perfscope run`.

Plain bash that a site can read and sign. It names nothing of the machine it was written on but what the
user gave.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from perfscope import __version__
from perfscope.rundir import layout
from perfscope.rundir.shell import quote
from perfscope.slurm.quoting import directive, quote_all
from perfscope.slurm.rendezvous import Rendezvous, rendezvous
from perfscope.slurm.request import JobRequest

RUNS = "perfscope-runs"
ENDED_BY_SLURM = "Slurm ended job"  # all that the script knows; the one who knows more may say so
_WIDTH = 100
_ADDRESS_OF = (
    "# A node's name where it resolves, else the address that Slurm has for it.",
    "address_of() {",
    '  if getent hosts "$1" > /dev/null; then echo "$1"; return; fi',
    "  scontrol show node \"$1\" | sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p'",
    "}",
)


def batch_script(job: JobRequest) -> str:
    """The whole script.

    Raises:
        UsageError: an option of sbatch holds a line break.
    """
    how = rendezvous(job)
    pieces = (
        [
            "#!/bin/bash",
            *header(job),
            f"# By `perfscope slurm script`, perfscope {__version__}; yours to change.",
        ],
        ["set -euo pipefail"],
        environment(job),
        _run_directory(job),
        _nodes(job, how),
        _threads(job),
        _neighbours() if job.clean else [],
        _staging(job),
        _launch(job, how),
        _ending(job),
    )
    return "\n\n".join("\n".join(piece) for piece in pieces if piece) + "\n"


def header(job: JobRequest) -> list[str]:
    """The #SBATCH lines. Raises UsageError where a value is not allowed in one."""
    log = (("output", job.log), ("open-mode", "append"))
    return [directive(name, value) for name, value in (*options_of(job), *log)]


def options_of(job: JobRequest) -> list[tuple[str, str | None]]:
    """What a job is asked for, by the names of sbatch and salloc; None = without a value."""
    valued = (
        ("job-name", job.name),
        ("nodes", str(job.nodes)),
        ("ntasks-per-node", str(job.tasks_per_node)),
        ("cpus-per-task", None if job.cpus_per_task is None else str(job.cpus_per_task)),
        ("gpus-per-node", job.gpus_per_node),
        ("mem", job.mem),
        ("constraint", job.constraint),
        ("partition", job.partition),
        ("account", job.account),
        ("qos", job.qos),
        ("time", job.time),
        ("array", job.array),
    )
    options: list[tuple[str, str | None]] = [(name, value) for name, value in valued if value is not None]
    if job.exclusive:
        options.append(("exclusive", None))
    if job.requeue is not None:
        options.append(("requeue" if job.requeue else "no-requeue", None))
    return [*options, *job.options]


def environment(job: JobRequest) -> list[str]:
    """Modules and the site's lines, then a check that perfscope is there."""
    lines = []
    if job.modules or job.setup:
        lines += ["set +u # modules and environments read variables that are not set"]
        if job.modules:
            lines += [
                "# What fails in a profile is no reason to end the job.",
                "if ! type module > /dev/null 2>&1; then set +e; . /etc/profile; set -e; fi",
                f"module load {quote_all(job.modules)}",
            ]
        lines += [*job.setup, "set -u"]
    return [
        *lines,
        "export SLURM_EXPORT_ENV=ALL # what is set here reaches the tasks, however the job was submitted",
        "if ! command -v perfscope > /dev/null; then",
        '  echo "perfscope is not on PATH on $(uname -n): load or activate its environment (setup = [...] in'
        ' perfscope-site.toml)" >&2',
        "  exit 127",
        "fi",
    ]


def _run_directory(job: JobRequest) -> list[str]:
    """Where the run goes. A job that is requeued starts anew beside what its first attempt has left."""
    if job.run is not None:
        base = quote(job.run) + ("-$SLURM_ARRAY_TASK_ID" if job.array else "")
    elif job.array:
        base = f'"{RUNS}/slurm-${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"'
    else:
        base = f'"{RUNS}/slurm-$SLURM_JOB_ID"'
    return [
        f"base={base}",
        "run=$base",
        "attempt=${SLURM_RESTART_COUNT:-0}",
        'if [ "$attempt" -gt 0 ]; then # requeued: what was recorded before stays as it is',
        "  before=$base",
        '  if [ "$attempt" -gt 1 ]; then before=$base-restart$((attempt - 1)); fi',
        '  perfscope slurm close "$before" --unless-finished --reason "job $SLURM_JOB_ID was requeued" ||',
        "    true",
        "  run=$base-restart$attempt",
        "fi",
        'if [ -e "$run/run.json" ]; then',
        '  echo "$run already holds a run: every job needs an -o of its own" >&2',
        "  exit 125",
        "fi",
        'mkdir -p "$(dirname "$run")"',
    ]


def _nodes(job: JobRequest, how: Rendezvous) -> list[str]:
    uses = "\n".join((*how.lines, *how.launch))
    lines = ['mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")']
    if "$tasks" in uses:
        lines.append(f"tasks=$((${{#nodes[@]}} * {job.tasks_per_node}))")
    if "address" in uses:
        lines += _ADDRESS_OF
    if "$address" in uses:
        lines.append('address=$(address_of "${nodes[0]}")')
    if "$port" in uses or "(port" in uses:
        lines.append(
            "port=$((15000 + SLURM_JOB_ID % 250 * 64)) # from the job's id: its neighbors have others"
        )
    return lines


def _threads(job: JobRequest) -> list[str]:
    cpus = str(job.cpus_per_task) if job.cpus_per_task else f"$((SLURM_CPUS_ON_NODE / {job.tasks_per_node}))"
    return [
        f"export OMP_NUM_THREADS=${{OMP_NUM_THREADS:-{cpus}}}",
        'if [ "$OMP_NUM_THREADS" = 0 ]; then export OMP_NUM_THREADS=1; fi',
    ]


def _neighbours() -> list[str]:
    """A function that writes down, per node, load, busy CPUs and whose processes those are: bash alone."""
    return [
        "# Who else uses the nodes while nothing of this job runs: a line of JSON per node.",
        "# shellcheck disable=SC2016 # it is for the other shell",
        "look='",
        "ticks() { read -r _ user nice system _ _ irq soft steal _ < /proc/stat;"
        " echo $((user + nice + system + irq + soft + steal)); }",
        "from=$(ticks); sleep 1; busy=$(($(ticks) - from))",
        "read -r load _ < /proc/loadavg",
        'others=$(ps -e -o user:32= -o pcpu= | awk -v me="$(id -un)" \\',
        '  "\\$1 != me && \\$2 >= 5 { n[\\$1]++ }'
        ' END { for (u in n) printf \\"%s%s %d\\", s++ ? \\", \\" : \\"\\", u, n[u] }")',
        'printf "{\\"when\\": \\"%s\\", \\"node\\": \\"%s\\", \\"unix\\": %s, \\"load\\": %s,'
        ' \\"busy_cpus\\": %d.%02d, \\"others\\": \\"%s\\"}\\n" \\',
        '  "$1" "$SLURMD_NODENAME" "$(date +%s)" "$load" $((busy / 100)) $((busy % 100)) "$others"',
        "'",
        "seen=$run.$SLURM_JOB_ID.neighbours",
        "neighbors() {",
        '  srun --ntasks="${#nodes[@]}" --ntasks-per-node=1 bash -c "$look" look "$1" |'
        ' tee -a "$seen" || true',
        "}",
    ]


def _staging(job: JobRequest) -> list[str]:
    if job.stage is None:
        return []
    return [
        "# Data is where it is read before the clock starts.",
        "# shellcheck disable=SC2016 # it is for the nodes' shells",
        f'srun --ntasks="${{#nodes[@]}}" --ntasks-per-node=1 bash -c {quote(job.stage)}',
    ]


def _launch(job: JobRequest, how: Rendezvous) -> list[str]:
    lines = list(how.lines)
    if how.task:
        lines += ["# shellcheck disable=SC2016 # it is for the tasks' shells", f"task={quote_text(how.task)}"]
    lines += [*_array("command", (quote(word) for word in job.command)), ""]
    if job.clean:
        lines.append("neighbors before")
    record = (quote_all(("--name", job.name)), *map(quote, job.record))
    argv = [*record, "--", *how.launch, '"${command[@]}"']
    return [
        *lines,
        "# scancel, a time limit and a requeue send SIGTERM first, to perfscope, too, which closes the run.",
        "stopped=",
        "trap 'stopped=yes' TERM",
        "status=0",
        *_wrapped(('perfscope run -o "$run"', *argv, "|| status=$?")),
    ]


def _ending(job: JobRequest) -> list[str]:
    lines = [
        'if [ -n "$stopped" ]; then',
        f'  perfscope slurm close "$run" --reason "{ENDED_BY_SLURM} $SLURM_JOB_ID" || true',
    ]
    if job.clean:
        lines += ["else", "  neighbors after"]
    lines.append("fi")
    if job.clean:
        lines += [
            'if [ "$status" -eq 125 ]; then rm -f "$seen" # not started: the run is another job\'s',
            f'elif [ -d "$run" ] && [ -e "$seen" ]; then mv "$seen" "$run/{layout.NEIGHBORS_JSONL}"; fi',
        ]
    return [*lines, 'exit "$status"']


def quote_text(text: str) -> str:
    """Several lines of shell as one quoted word that still has its lines."""
    return "'" + text.replace("'", "'\\''") + "'"


def _array(name: str, texts: Iterable[str]) -> list[str]:
    line = f"{name}=({' '.join(texts := list(texts))})"
    return [line] if len(line) <= _WIDTH else [f"{name}=(", *(f"  {word}" for word in texts), ")"]


def _wrapped(texts: Iterable[str]) -> Iterator[str]:
    """One command over several lines."""
    line = ""
    for word in texts:
        if line and len(line) + len(word) > _WIDTH:
            yield f"{line} \\"
            line = f"  {word}"
        else:
            line = f"{line} {word}" if line else word
    yield line
