rule emulate:
    """A text for a GPU on the processor, in every way that is installed; a failure is written down in emulation.json."""
    input:
        f"results/derive/{AXES}/manifest.json",
    output:
        f"results/emulate/{AXES}/{{machine}}/emulation.json",
    params:
        code=kernel.code_digest("lab/evidence.py", "lab/emulation.py", "lab/opencl.py", "lab/trial.py"),
    log:
        f"results/logs/emulate/{AXES}/{{machine}}.log",
    resources:
        **SMALL,
    shell:
        f"moapipe emulate {NAMES} --machine {{wildcards.machine}} --keep-going 2>&1 | tee -i {{log}}"
