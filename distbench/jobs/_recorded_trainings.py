"""Tables of job kinds that compare trainings step by step."""

from distbench.core.columns import TableColumn, TableSpec
from distbench.ipc.trial_files import SKETCH_COLUMNS

TRAINING = TableColumn("training", "varchar", "Training of the trial, which may have several.")
STEP = TableColumn("step", "bigint", "Step of that training, from 0 on.")


def training_tables(prefix: str) -> tuple[TableSpec, TableSpec]:
    """Tables ``<prefix>_curve`` and ``<prefix>_tensors`` of kinds that compare trainings step by step."""
    curve = (
        TableColumn("loss", "double", "Loss before the update, over the global batch."),
        TableColumn("grad_norm", "double", "Norm of the whole gradient, before clipping."),
    )
    tensors = (
        TableColumn("of", "varchar", "gradient, parameter, update, buffer or optimizer state."),
        TableColumn("tensor", "varchar", "Name of the tensor."),
        TableColumn("norm", "double", "Its L2 norm."),
        TableColumn(
            "digest",
            "varchar",
            "Hash of its bits, equal for identical tensors; before a dash its law.",
        ),
        *(TableColumn(name, "double", "One of the 16 sums of its CountSketch.") for name in SKETCH_COLUMNS),
    )
    return (
        TableSpec(f"{prefix}_curve", "One row per training and step.", (TRAINING, STEP, *curve)),
        TableSpec(f"{prefix}_tensors", "One row per training, step and tensor.", (TRAINING, STEP, *tensors)),
    )
