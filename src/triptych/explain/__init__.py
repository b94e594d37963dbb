"""What a map does and does not show: attention held against something that is known or can be intervened on."""
