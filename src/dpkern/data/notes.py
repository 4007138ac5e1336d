"""What certificates say of what was read from the records."""

from dpkern.data.csr import has_width_read

LABELS_READ = "the labels were read from y and assumed to be public; classes= declares them"
TASK_READ = (
    "that y has more than two values, so a regression, was read from y and assumed to be public; "
    "task='regression' declares it"
)

WIDTH_READ = (
    "the number of features was read from the records, as the largest index in them, and assumed "
    "to be public; n_features= declares it to the reader"
)
GROUPS_READ = (
    "taken as public: which records are in which silo, as groups says of each of them; neighbours "
    "differ in all other values of a record"
)


def notes_on_records(stated: str | None, task: str, classes: object, X: object) -> tuple[str, ...]:
    """Return the notes on the task, stated and as it is, on `classes` if None, and on X."""
    width = (WIDTH_READ,) if has_width_read(X) else ()
    if classes is not None or stated == "regression":
        return width
    return (TASK_READ if task == "regression" else LABELS_READ, *width)
