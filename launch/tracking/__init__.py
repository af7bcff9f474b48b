"""Trackers: TensorBoard, Weights & Biases, MLflow and CSV, told what a run logs."""
