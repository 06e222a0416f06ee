"""Configuration files of DeepSpeed and Accelerate, read as the training that they describe."""
