# Short names for everything a person does here; `make` alone lists them. GNU make 3.81 (macOS) is enough.
#
# args="..."   shell words that go to the program as options; the shell sees them, make does not expand them
# input= reference= run= runs= path= resume= output=   free text and paths: neither make, the shell nor Hydra reads them; the
#              program finds them in the environment, byte for byte, as TRIPTYCH_INPUT, _RUN, _DATA_PATH, ...

# make hands every variable of its command line to the recipes, and since 4.4 to $(shell) too, expanded: a
# $(shell ...) in a text would run, a lone $( would stop make. So this stands before the first $(shell).
unexport task sweep args port input run path resume output reference runs
MAKEOVERRIDES =

VENV ?= .venv
port ?= 6006
ready := $(VENV)/.ready
python := $(VENV)/bin/python

.PHONY: help setup train sweep evaluate predict report compare dashboard bench test test-slow clean FORCE

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s  %s\n", $$1, $$2 }' Makefile

setup: ## make the environment .venv (other targets do so by themselves): PYTHON=python3.12 make setup
	@sh scripts/setup.sh '$(VENV)' '$(PYTHON)'

train: $(ready) ## train a model: make train task=charlm args="trainer.max_steps=200 attention=naive"
	$(triptych)

sweep: $(ready) ## vary options: make sweep task=vit sweep=lr, or args="optimizer.lr=1e-3,3e-3", or args="seeds=5"
	$(triptych)

evaluate: $(ready) ## test metrics again from a checkpoint: make evaluate run=runs/charlm/latest
	$(triptych)

predict: $(ready) ## use a trained model: make predict run=runs/charlm/latest input="The assert statement"
	$(triptych)

explain: $(ready) ## what the maps show, tested: make explain run=runs/vit/latest args="split=test n=64"
	$(triptych)

report: $(ready) ## rebuild a run's report.html: make report run=runs/charlm/latest
	$(triptych)

compare: $(ready) ## put runs side by side: make compare runs="runs/charlm/*" args="sort=test/loss"
	$(triptych)

dashboard: $(ready) ## TensorBoard on runs/: make dashboard port=6006
	@case $(call quoted,$(value port)) in ''|*[!0-9]*) \
	  echo "port= takes a number, such as port=6007" >&2; exit 2;; esac
	@$(python) -m tensorboard.main --logdir runs --port $(call quoted,$(value port)) || \
	  { echo "TensorBoard did not start (see above); if its port is taken: make dashboard port=6007" >&2; exit 1; }

bench: $(ready) ## measure speed on this machine
	$(triptych)

test: $(ready) ## style, types and tests; args="-k mask" goes to pytest
	$(python) -m ruff check
	$(python) -m ruff format --check
	$(VENV)/bin/oxlint --deny-warnings src/triptych/report/assets
	$(python) -m mypy
	$(python) -m pytest $(words_of_args)

test-slow: $(ready) ## the tests that take minutes
	$(python) -m pytest -m slow $(words_of_args)

clean: ## remove caches, never runs/ or .venv
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +

# ---- how the recipes call the program ----

define newline


endef
quoted = '$(subst ','\'',$(subst $(newline), ,$(1)))'
words_of_args = $(subst $(newline), ,$(value args))
triptych = $(VENV)/bin/triptych $@$(if $(value task), task=$(call quoted,$(value task)))$(if $(value sweep), sweep=$(call quoted,$(value sweep)))$(if $(value args), $(words_of_args))

# ---- the environment ----

# Beside pyproject.toml's date: .venv copied along with the folder still imports the old folder's code, and a
# Python that was upgraded away leaves a dangling link.
ifneq ($(words $(VENV)),1)
  $(error VENV= takes one path without spaces, such as VENV=.venv)
endif
at := $(shell test -x '$(python)' && sed -n 1p '$(ready)' 2>/dev/null)
$(ready): pyproject.toml $(if $(filter-out x$(CURDIR),x$(at)),FORCE)
	@sh scripts/setup.sh '$(VENV)' '$(PYTHON)'

# ---- free text and paths ----

# make drops blanks at the front of a value. Where the system shows make's own command line they are put back;
# elsewhere (macOS) TRIPTYCH_INPUT="  x" make predict keeps them.
leading = $(subst n,$(newline),$(shell test -r /proc/$$PPID/cmdline && \
  tr '\001\n\0' '\002\001\n' < /proc/$$PPID/cmdline | LC_ALL=C awk 'sub(/^$(1)=/, "") \
  { match($$0, /^[ \t\v\f\r\001]*/); s = substr($$0, 1, RLENGTH) } END { gsub(/\001/, "n", s); printf "%s", s }'))

define raw
ifneq ($$(filter command,$$(origin $(1))),)
export TRIPTYCH_$(2) := $$(call leading,$(1))$$(value $(1))
endif
ifneq ($$(filter environment,$$(origin $(1))),)
export TRIPTYCH_$(2) := $$(value $(1))
endif
endef
$(eval $(call raw,input,INPUT))
$(eval $(call raw,run,RUN))
$(eval $(call raw,path,DATA_PATH))
$(eval $(call raw,resume,RESUME))
$(eval $(call raw,output,OUTPUT))
$(eval $(call raw,reference,REFERENCE))
$(eval $(call raw,runs,RUNS))

# make ignores a variable it has no use for: seed=3 would train with another seed and say nothing.
known := task sweep args port input run path resume output reference runs VENV PYTHON SHELL MAKEFLAGS MAKEOVERRIDES
unknown := $(filter-out $(known),$(foreach v,$(.VARIABLES),$(if $(filter command,$(origin $(v))),$(v))))
ifeq ($(MAKELEVEL),0)
ifneq ($(unknown),)
  $(error make has no setting $(firstword $(unknown))=; give it to the program instead: args="$(firstword $(unknown))=...")
endif
endif
