"""The mechanisms: what adds noise to a message and records the release before it leaves."""
