"""Before jobs go to a cluster: what they cost at most, and whether they may be submitted from here. Silent elsewhere."""

import atexit


def due():
    """Every job that is to run: (stage, its group where what it asks for depends on that)."""
    jobs = [j for j in workflow.dag.jobs if workflow.dag.needrun(j) and j.rule.shellcmd]
    return [(j.rule.name, group_of(j.wildcards) if j.rule.name in request.GROUPED else None) for j in jobs]


def told():
    """What the jobs cost at most, before the first of them is submitted."""
    if preview := request.preview(EXPERIMENT, due()):
        print(preview, flush=True)


onstart:
    told()
    if obstacle := request.obstacle(EXPERIMENT, due(), os.environ):
        sys.exit(f"moapipe: {obstacle}")


atexit.register(lambda: workflow.dryrun and told())  # a dry run has no onstart
