"""Formats of measured rows, one a file: the columns, and the model behind them."""
