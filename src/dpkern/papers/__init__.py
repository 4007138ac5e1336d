"""The papers' printed noise and its certificates, beside what `dpkern.privacy` certifies."""
