"""The shuffle model: binomial noise, its proof in concentrated DP, and the protocol."""
