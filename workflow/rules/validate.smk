rule validate:
    """A library against extended precision; a failure is written down in validation.json and nothing of it is timed."""
    input:
        f"results/build/{AXES}/{{machine}}/build.json",
    output:
        f"results/validate/{AXES}/{{machine}}/validation.json",
    params:
        meaning=lambda w: EXPERIMENT.kernels[w.kernel].digest,
        code=kernel.code_digest("lab/validate.py"),
    log:
        f"results/logs/validate/{AXES}/{{machine}}.log",
    resources:
        **request.resources(EXPERIMENT, "validate", group_of if TEXTS else None),
    shell:
        f"moapipe validate {NAMES} --machine {{wildcards.machine}} --keep-going 2>&1 | tee -i {{log}}"
