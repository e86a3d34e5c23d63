"""APIs for settings and quotas: description and change."""
