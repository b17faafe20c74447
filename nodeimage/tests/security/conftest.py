from hypothesis import settings

settings.register_profile("security", deadline=None, max_examples=100)  # a busy machine is no reason to fail
settings.load_profile("security")
