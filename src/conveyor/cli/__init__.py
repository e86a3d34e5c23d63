"""The commands of `conveyor`. A folder has those about one noun; `terminal` has what several of them use."""
