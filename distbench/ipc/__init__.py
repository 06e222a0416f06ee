"""What the processes of a run exchange: files in its folder, and messages between nodes. Without torch."""
