"""The noise that the papers print, and mechanisms that only demonstrate flaws of papers."""
