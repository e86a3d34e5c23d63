"""A partition: leader, high watermark, who waits for it; and the runner of the state machines that live on one."""
