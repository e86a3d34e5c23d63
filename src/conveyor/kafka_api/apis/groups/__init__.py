"""APIs for consumer groups: membership in both protocols, committed offsets, description and deletion."""
