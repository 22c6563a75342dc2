rule calibrate:
    """This machine's rates. All cores, so that nothing else runs beside it; once a machine, until the protocol changes."""
    output:
        "results/calibrate/{machine}/calibration.json",
    params:
        protocol=experiment.PROTOCOL,
        rates=experiment.RATES,
    log:
        "results/logs/calibrate/{machine}.log",
    threads: lambda w: request.threads(EXPERIMENT, lambda: workflow.cores)
    resources:
        bench=1,
        **MEASURING,
    shell:
        "moapipe calibrate --machine {wildcards.machine} 2>&1 | tee -i {log}"


rule predict:
    """Times of every case of a group from the counts and the calibration, before anything of it is measured."""
    input:
        lambda w: [f"results/derive/{b.path()}/cost.json" for b in builds_of(w)],
        f"results/calibrate/{MACHINE}/calibration.json",
    output:
        f"{HERE}/predict/{GROUP}/prediction.json",
    params:
        points=lambda w: experiment.run_digest(EXPERIMENT, group_of(w)),
        code=kernel.code_digest("machine", "lab/forecast.py"),
    log:
        f"results/logs/{EXPERIMENT.name}/predict/{GROUP}.log",
    resources:
        **SMALL,
    shell:
        f"moapipe predict {GROUP_NAMES} 2>&1 | tee -i {{log}}"
