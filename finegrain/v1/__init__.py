"""Generated protocol code, written by `./dev protos`; never edited."""
