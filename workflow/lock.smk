"""Who works in this folder: jobs end with their run, the lock of a living run stays, and what to do about a dead one's is said."""

import atexit

os.environ[tether.RUN] = str(os.getpid())
HELD = tether.locked(ROOT)

if "--unlock" in sys.argv and tether.living(ROOT):
    sys.exit(tether.advice(ROOT))


def refused():
    """Whether Snakemake has stopped at the lock: it was there before, others' files here are in it, and this is no dry run."""
    locking = workflow.persistence and not workflow.dryrun and getattr(workflow.execution_settings, "lock", False)
    return HELD and locking and workflow.persistence.locked


atexit.register(lambda: refused() and print(tether.advice(ROOT), file=sys.stderr))


onerror:
    print("moapipe: not finished; what is finished is kept, and the same command goes on from there", file=sys.stderr)
