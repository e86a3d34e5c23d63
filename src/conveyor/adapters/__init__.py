"""What stands behind the ports: the real disk, the embedded metadata store."""
