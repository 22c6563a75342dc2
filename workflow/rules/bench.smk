rule bench:
    """All variants, languages and PyTorch of a group in turn, alone on the machine; on further nodes, too, where the experiment asks for
    them. Snakemake takes the record away before; bench keeps a copy, and gives it back where it is one of the very same builds,
    prediction and run axes."""
    input:
        lambda w: [f"results/validate/{b.path()}/{MACHINE}/validation.json" for b in builds_of(w)],
        f"{HERE}/predict/{GROUP}/prediction.json",
    output:
        f"{HERE}/bench/{GROUP}/{{node}}record.nc",
    params:
        points=lambda w: experiment.run_digest(EXPERIMENT, group_of(w)),
        protocol=experiment.PROTOCOL,
        node=lambda w: w.node.strip("node/") or "0",
    log:
        f"results/logs/{EXPERIMENT.name}/bench/{{node}}{GROUP}.log",
    threads: lambda w: request.threads(EXPERIMENT, lambda: workflow.cores)
    resources:
        bench=1,
        **request.resources(EXPERIMENT, "bench", group_of),
    shell:
        f"moapipe bench {GROUP_NAMES} --node {{params.node}} 2>&1 | tee -i {{log}}"
