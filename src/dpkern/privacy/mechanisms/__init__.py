"""The mechanisms, which add noise to a message and record the release before they return it."""
