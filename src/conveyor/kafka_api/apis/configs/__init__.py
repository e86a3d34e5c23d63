"""APIs that describe and change settings and quotas."""
