"""The coordinator as a rendezvous of torchrun: `torchrun --rdzv-backend softs`."""
