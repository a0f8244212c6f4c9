"""The stand-alone payload runner, which travels in every sandbox as a file."""
