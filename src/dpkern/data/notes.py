"""What certificates say of what was read from the targets."""

LABELS_READ = "the labels were read from y and assumed to be public; classes= declares them"
TASK_READ = (
    "that y has more than two values, so a regression, was read from y and assumed to be public; "
    "task='regression' declares it"
)


def notes_on_targets(stated: str | None, task: str, classes: object) -> tuple[str, ...]:
    """Return the note on the task, as it was stated and as it is, and on `classes` if not None."""
    if classes is not None or stated == "regression":
        return ()
    return (TASK_READ,) if task == "regression" else (LABELS_READ,)
