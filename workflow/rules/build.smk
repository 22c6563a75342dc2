rule build:
    """A source as a library, its compiler recorded, its inner loops checked; a failure is written down in build.json."""
    input:
        f"results/derive/{AXES}/manifest.json",
    output:
        f"results/build/{AXES}/{{machine}}/build.json",
    params:
        compilers=EXPERIMENT.machine.model_dump_json(),
        code=kernel.code_digest("lab/build.py"),
    log:
        f"results/logs/build/{AXES}/{{machine}}.log",
    resources:
        **SMALL,
    shell:
        f"moapipe build {NAMES} --machine {{wildcards.machine}} --keep-going 2>&1 | tee -i {{log}}"
