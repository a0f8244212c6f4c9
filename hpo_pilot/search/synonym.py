"""What people write who come from other tools, and the search file's own word for it."""

from __future__ import annotations

#: Keys under other names, as other tools have them; the one that the model knows is taken.
KEY_SYNONYMS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("min", "minimum", "lower", "lower_bound", "from", "start"), ("low",)),
    **dict.fromkeys(("max", "maximum", "upper", "upper_bound", "to", "stop", "end"), ("high",)),
    **dict.fromkeys(("values", "options", "categories", "items"), ("choices",)),
    **dict.fromkeys(("distribution", "prior", "spacing"), ("scale",)),
    **dict.fromkeys(("kind", "method"), ("type", "name")),
    **dict.fromkeys(("if", "condition", "conditions", "active"), ("when",)),
    **dict.fromkeys(("q", "increment", "resolution"), ("step",)),
    **dict.fromkeys(("direction", "mode", "sense"), ("goal",)),
    **dict.fromkeys(("target", "loss", "score"), ("metric",)),
    **dict.fromkeys(("max_trials", "num_trials", "n_trials", "points", "evaluations", "max_points"), ("trials",)),
    **dict.fromkeys(("concurrent", "max_concurrent", "workers", "jobs", "n_jobs"), ("parallel",)),
    **dict.fromkeys(("k_folds", "kfold", "kfolds", "n_folds", "n_splits", "number", "splits"), ("k", "folds")),
    **dict.fromkeys(("walltime", "time", "duration", "timeout"), ("minutes", "hours")),
    **dict.fromkeys(("memory", "mem", "ram"), ("memory_mb",)),
    **dict.fromkeys(("cpus", "cpu", "ncores", "cores_per_node"), ("cores",)),
    **dict.fromkeys(("gpus", "gpu", "ngpus"), ("gpus_per_node",)),
    **dict.fromkeys(("ranks", "ntasks_per_node", "tasks_per_node", "ppn", "np"), ("ranks_per_node",)),
    **dict.fromkeys(("processes_per_node", "procs_per_node", "slots_per_node"), ("ranks_per_node",)),
    **dict.fromkeys(("num_nodes", "n_nodes", "nnodes", "node_count", "hosts"), ("nodes",)),
    **dict.fromkeys(("parameters", "params", "search_space", "hyperparameters", "dimensions"), ("space",)),
    **dict.fromkeys(("algorithm", "algo", "sampler", "strategy"), ("optimizer", "name")),
    **dict.fromkeys(("initial_points", "initial", "warm_start", "start_points"), ("start",)),
    **dict.fromkeys(("random_state", "random_seed"), ("seed",)),
    **dict.fromkeys(("project", "project_name", "title", "name"), ("search", "name")),
    **dict.fromkeys(("exec", "cmd", "run", "script"), ("command",)),
    **dict.fromkeys(("image", "sif"), ("container",)),
    **dict.fromkeys(("folder", "directory", "dir", "path", "code"), ("files",)),
    **dict.fromkeys(("limits", "stopping"), ("budget",)),
}

#: Values under other names, by the key they stand at.
VALUE_SYNONYMS: dict[str, dict[str, str]] = {
    "type": {
        **dict.fromkeys(("float", "double", "number", "uniform", "loguniform", "continuous", "scalar"), "real"),
        **dict.fromkeys(("int", "uniformint", "whole", "discrete", "randint", "long"), "integer"),
        **dict.fromkeys(
            ("choice", "cat", "category", "choices", "enum", "str", "string", "bool", "boolean"), "categorical"
        ),
        **dict.fromkeys(("ordered", "ord", "levels"), "ordinal"),
    },
    "goal": {
        **dict.fromkeys(("min", "minimise", "minimum", "lower", "smallest", "down"), "minimize"),
        **dict.fromkeys(("max", "maximise", "maximum", "higher", "largest", "up"), "maximize"),
    },
    "scale": {
        **dict.fromkeys(("logarithmic", "log10", "ln", "log2", "exp", "exponential", "geometric", "loguniform"), "log"),
        **dict.fromkeys(("lin", "uniform", "none", "normal", "flat", "arithmetic"), "linear"),
    },
}
