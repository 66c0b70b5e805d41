# Thin: everything is in ./dev.
COMMANDS = setup demo test check protos install-tools
.PHONY: $(COMMANDS)
$(COMMANDS):
	@./dev $@
