"""Configuration files of DeepSpeed, Accelerate and the Trainer, read as the training that they describe."""
