"""APIs for topics: metadata, creation, growth, deletion, description."""
