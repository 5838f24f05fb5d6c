# The few commands for a person and for continuous integration. `make` alone lists them.

TARGET := $(or $(CARGO_TARGET_DIR),target)
EXTANT := $(TARGET)/release/extant
IMAGE  := volume.img
DIR    := mnt
# seconds that `make fuzz` runs each target
SECONDS_EACH := 60
# of the workloads that `make crash` and `make night` draw, and the volumes that `make night` mutates
SEED := 1
# the part of all workloads of two operations that `make night` explores: with 0/50 to 49/50 all
SLICE := 0/50
# the modes that volumes with space maps have
SPACEMAP := --format spacemap --mode none --mode dirty-bit --mode journal --mode journal-data --mode journal-writeback
# the modes with snapshots and transactions
VERSIONS := --mode snapshot --mode snapshot-cow
# how many times the usual number of random cases `make long` runs
CAMPAIGN := 20

# also true where the program behind the mount is gone
MOUNTED = grep -qs ' $(CURDIR)/$(DIR) ' /proc/self/mounts

# where Debian installs mke2fs and related programs, also for users other than root
export PATH := $(PATH):/usr/sbin:/sbin

.PHONY: help setup build run stop test fuzz crash night long

help:
	@echo "make run     install missing packages, build, make $(IMAGE), mount it at ./$(DIR)"
	@echo "make stop    unmount ./$(DIR)"
	@echo "make test    everything that must hold before a change lands"
	@echo "make build   the optimised program: $(EXTANT)"
	@echo "make setup   only install missing packages"
	@echo "make fuzz    every fuzz target for $(SECONDS_EACH) s (SECONDS_EACH=N)"
	@echo "make crash   explore power-loss states, verify each mode's guarantees"
	@echo "make night   the same for hours: slice SLICE=I/N of two operations, longer ones, every request failing, mutated volumes"
	@echo "make long    all tests, with $(CAMPAIGN) times the random cases (CAMPAIGN=N)"

setup:
	@scripts/setup

build: setup
	cargo build --release --locked

$(IMAGE): | setup
	scripts/make-sample $(IMAGE)

run: build $(IMAGE)
	@if $(MOUNTED); then echo "./$(DIR) is mounted already; make stop unmounts it"; exit 1; fi
	@mkdir -p $(DIR)
	$(EXTANT) mount $(IMAGE) $(DIR)
	@scripts/what-next $(EXTANT) $(IMAGE) $(DIR)

stop:
	@if $(MOUNTED); then $(EXTANT) umount $(DIR) && echo "./$(DIR) is unmounted"; \
	else echo "./$(DIR) is not mounted"; fi

test: setup
	@scripts/test

fuzz: setup
	@scripts/fuzz $(SECONDS_EACH)

crash: build
	$(EXTANT) crash --e2fsck-every 200
	$(EXTANT) crash --ops two --count 300 --seed $(SEED) --e2fsck-every 200
	$(EXTANT) crash --ops random --count 40 --length 40 --seed $(SEED) --e2fsck-every 200
	$(EXTANT) crash $(SPACEMAP)
	$(EXTANT) crash $(SPACEMAP) --ops random --count 40 --length 40 --seed $(SEED)
	$(EXTANT) crash $(SPACEMAP) --ops full --count 48 --most 100 --seed $(SEED)
	$(EXTANT) crash $(VERSIONS) --ops versions --count 120 --most 100 --e2fsck-every 200
	$(EXTANT) crash $(VERSIONS) --ops random-versions --count 50 --length 200 --most 50 --states 6 --seed $(SEED) --e2fsck-every 200
	$(EXTANT) crash --ops papers --count 22 --most 100 --seed $(SEED) --e2fsck-every 200
	$(EXTANT) crash --ops full --count 48 --most 100 --seed $(SEED) --e2fsck-every 200
	$(EXTANT) crash --ops one --count 20 --faults 6
	cargo test --release --locked -p extant-crash --test mutants -- --show-output
	cargo test --release --locked -p extant-crash

night: build
	$(EXTANT) crash --ops two --slice $(SLICE) --nested 20 --e2fsck-every 100
	$(EXTANT) crash --ops random --count 2000 --length 200 --most 500 --seed $(SEED) --nested 20 --e2fsck-every 100
	$(EXTANT) crash --ops papers --count 1000 --most 500 --seed $(SEED) --nested 20 --e2fsck-every 100
	$(EXTANT) crash --ops full --count 1000 --seed $(SEED) --nested 20 --e2fsck-every 100
	$(EXTANT) crash $(SPACEMAP) --ops two --slice $(SLICE) --nested 20
	$(EXTANT) crash $(SPACEMAP) --ops random --count 2000 --length 200 --most 500 --seed $(SEED) --nested 20
	$(EXTANT) crash --ops two --count 500 --seed $(SEED) --faults 1000
	$(EXTANT) crash --ops random --count 200 --seed $(SEED) --faults 1000
	EXTANT_DRAW=$(SEED) EXTANT_CAMPAIGN=500 cargo test --release --locked -p extant-check --test damage mutated_volumes -- --nocapture
	EXTANT_CAMPAIGN=1000000 cargo test --release --locked -p extant-check --test damage each_field -- --nocapture
	EXTANT_DRAW=$(SEED) EXTANT_CAMPAIGN=200 cargo test --release --locked -p extant-check --test damage pairs_of_damage -- --nocapture

long: setup
	EXTANT_CAMPAIGN=$(CAMPAIGN) cargo test --release --workspace --locked --no-fail-fast
