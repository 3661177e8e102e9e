# The commands of daily life; scripts/ holds what is longer than a line.

GO       ?= go
# The kernel's RDMA devices are in where rdma-core's headers are.
TAGS     ?= $(shell pkg-config --exists libibverbs librdmacm 2>/dev/null && echo verbs)
FUZZTIME ?= 30s
SIM_RUNS ?= 10000
SIM_DEPTH ?= 7
SEED     ?= 1
# What programs and packages say they are.
VERSION  ?= $(shell packaging/version.sh)
LDFLAGS   = -X oneshot/internal/version.text=$(VERSION)

# How the checks that are modules of their own are run: built by Go, pinned here.
GOFUMPT       = $(GO) run mvdan.cc/gofumpt@v0.12.0
GOLANGCI_LINT = $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

# Debian packages: a C compiler for the race detector and the load generator;
# foreign initiators; the stranger who decodes our traffic; the virtual machine.
TEST_PACKAGES  = gcc libc6-dev libiscsi-bin tshark qemu-utils qemu-block-extra qemu-system-x86 \
                 open-iscsi e2fsprogs xfsprogs util-linux kmod xz-utils iproute2 dmsetup multipath-tools udev fio sg3-utils nvme-cli tgt open-isns-server open-isns-utils \
                 rdmacm-utils ibverbs-providers rdma-core libibverbs-dev librdmacm-dev pkgconf bash
# Downloaded and unpacked by test/vm, not installed, as are the headers and sources of siw.
DOWNLOADED     = linux-image-amd64
DEB_PACKAGES   = debootstrap gcc libc6-dev libibverbs-dev librdmacm-dev ibverbs-providers pkgconf e2fsprogs qemu-system-x86 iproute2
BENCH_PACKAGES = gcc libc6-dev libiscsi-dev tgt istgt util-linux
# What runs in the guest of the benchmark.
VM_PACKAGES    = gcc libc6-dev qemu-system-x86 open-iscsi tgt fio kmod bash coreutils iproute2 libibverbs-dev librdmacm-dev ibverbs-providers pkgconf

.PHONY: appliance help run build deb test test-deb test-newer blktests nvmfabtest conformance check lint fuzz bench bench-drbd bench-endpoint bench-failover bench-ha bench-nic bench-nvme bench-rdma bench-vm deps deps-bench clean sim sim-orders

help: ## say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: build ## build, and serve memory disks on 127.0.0.1: iSCSI at 3260, NVMe/TCP at 4420
	bin/target serve

build: ## build bin/target and bin/initiator
	$(GO) build -tags '$(TAGS)' -ldflags '$(LDFLAGS)' -o bin/target ./cmd/target
	$(GO) build -tags '$(TAGS)' -ldflags '$(LDFLAGS)' -o bin/initiator ./cmd/initiator

deb: ## build a Debian package in bin/
	$(GO) build -trimpath -tags '$(TAGS)' -ldflags '$(LDFLAGS)' -o bin/target ./cmd/target
	$(GO) build -trimpath -tags '$(TAGS)' -ldflags '$(LDFLAGS)' -o bin/initiator ./cmd/initiator
	packaging/deb.sh -v '$(VERSION)' bin/target bin/initiator bin

test: deps ## install what tests need, run them; TURN=all runs both halves of the variants that else take turns
	GO='$(GO)' scripts/test.sh

test-deb: ## install, use, upgrade and remove the Debian package, in a chroot and under systemd, as root
	scripts/deps.sh $(DEB_PACKAGES)
	GO='$(GO)' packaging/chroot-test.sh
	$(GO) test -count=1 -tags deb -timeout 90m -v ./packaging

test-newer: deps ## have Linux 6.12 prove itself to NVMe subsystems, in a virtual machine with Debian 13's kernel
	$(GO) test -count=1 -timeout 30m -v ./test/vm/newer

conformance: ## run the tests of a libiscsi that is built in LIBISCSI=DIR
	ISCSI_TEST_CU='$(abspath $(or $(LIBISCSI),$(error say where libiscsi is built: LIBISCSI=DIR)))/test-tool/iscsi-test-cu' $(GO) test -count=1 -parallel 8 -timeout 30m -v -run '^Test(Conformance|Exceptions)$$' ./test/conformance

blktests: ## run the group nvme of blktests in a virtual machine, from BLKTESTS=DIR; GROUP=nbd is another one, RUN=004 one test, OVER=rdma another transport
	scripts/deps.sh -a $(DOWNLOADED) $(TEST_PACKAGES) gawk parted psmisc libnl-utils
	BLKTESTS='$(abspath $(or $(BLKTESTS),$(error say where blktests is: BLKTESTS=DIR)))' BLKTESTS_OVER='$(OVER)' BLKTESTS_KERNEL='$(KERNEL)' BLKTESTS_GROUP='$(GROUP)' ONESHOT_TARGET_TAGS='$(TAGS)' $(GO) test -count=1 -tags blktests -timeout 0 -v -run '^TestBlktests$$/$(RUN)' ./test/blktests

nvmfabtest: ## run nvmFabTest in a virtual machine with Debian 13's kernel and programs, from NVMFABTEST=DIR
	scripts/deps.sh -a $(DOWNLOADED) $(TEST_PACKAGES)
	NVMFABTEST='$(abspath $(or $(NVMFABTEST),$(error say where nvmFabTest is: NVMFABTEST=DIR)))' ONESHOT_TARGET_TAGS='$(TAGS)' $(GO) test -count=1 -tags nvmfabtest -timeout 1h -v -run '^TestNvmFabTest$$' ./test/fab

check: lint ## format, vet, lint, go.mod
	@out=$$($(GOFUMPT) -l .) && test -z "$$out" || { echo "gofumpt would change:"; echo "$$out"; exit 1; }
	$(GO) vet ./...
	$(GO) vet -tags invariants,blktests,nvmfabtest ./...
	[ -z '$(TAGS)' ] || $(GO) vet -tags '$(TAGS),guest' ./transport/rdma/verbs ./cmd/target ./server
	$(GO) mod tidy -diff

lint: ## golangci-lint; the first time builds it
	$(GOLANGCI_LINT) run ./...
	[ -z '$(TAGS)' ] || $(GOLANGCI_LINT) run --build-tags '$(TAGS),guest,deb,blktests,nvmfabtest' ./...
	$(GOLANGCI_LINT) run --build-tags 'invariants$(TAGS:%=,%)' ./...

fuzz: ## run every fuzz target for FUZZTIME (30s)
	GO='$(GO)' scripts/fuzz.sh $(FUZZTIME)

sim: ## run the mirror's core in SIM_RUNS (10000) simulated worlds from SEED (1) on
	ONESHOT_SIM_RUNS=$(SIM_RUNS) ONESHOT_SEED=$(SEED) $(GO) test -count=1 -timeout 0 -v -run '^TestRuns$$' ./ha/sim

sim-orders: ## run two nodes of the mirror's core through all orders of SIM_DEPTH (7) events
	ONESHOT_SIM_DEPTH=$(SIM_DEPTH) $(GO) test -count=1 -timeout 0 -v -run '^TestOrders$$' ./ha/sim

bench: deps-bench build ## measure the target beside tgt, istgt and gotgt
	$(GO) run ./bench
	$(GO) run ./bench/pictures

appliance: deps ## build bin/appliance: a machine that is nothing but a target
	$(GO) run ./appliance/build

bench-endpoint: ## measure endpoints beside memcpy, fio, pwrite and LUNs, on a quiet machine; -dir names the disk
	scripts/deps.sh fio
	$(GO) run ./bench/endpoint

bench-ha: deps-bench build ## measure a mirror beside a store that is none; BENCH_HA=-quick does it in two minutes
	$(GO) run ./bench/ha $(BENCH_HA)

bench-drbd: ## measure a mirror beside DRBD with LIO, in two virtual machines
	scripts/deps.sh -a $(DOWNLOADED) $(VM_PACKAGES) drbd-utils dmsetup
	$(GO) run ./bench/vm -mirror

bench-failover: ## lose the primary of a mirror and of DRBD with keepalived, in three virtual machines
	scripts/deps.sh -a $(DOWNLOADED) $(VM_PACKAGES) drbd-utils dmsetup keepalived iputils-arping e2fsprogs
	$(GO) run ./bench/vm -failover

bench-rdma: deps-bench build ## measure the flows of RDMA side by side
	$(GO) run ./bench/rdma

bench-nvme: deps-bench build ## measure NVMe/TCP beside iSCSI and a raw echo
	$(GO) run ./bench/nvme

bench-nic: deps-bench build ## measure what hand-overs to an RDMA device in another process cost
	$(GO) run ./bench/rdma -nic

bench-vm: ## measure the target beside LIO, tgt and nvmet, in a virtual machine
	scripts/deps.sh -a $(DOWNLOADED) $(VM_PACKAGES)
	$(GO) run ./bench/vm

deps: ## install the Debian packages that tests need
	scripts/deps.sh -a $(DOWNLOADED) $(TEST_PACKAGES)

deps-bench:
	scripts/deps.sh $(BENCH_PACKAGES)

clean: ## remove what was built
	rm -rf bin .cache
