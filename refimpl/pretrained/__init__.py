"""A pretrained model: where it comes from, tasks and scorers of others, its chat
template, prompts read once for all their answers, and the memory it takes."""
