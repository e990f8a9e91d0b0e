{{- define "lockkeeper.labels" -}}
app.kubernetes.io/name: lockkeeper
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* The DNS name of a pod: (list ROOT ORDINAL). It resolves before the pod is ready. */ -}}
{{- define "lockkeeper.host" -}}
{{- $root := index . 0 -}}
{{ $root.Release.Name }}-{{ index . 1 }}.{{ $root.Release.Name }}-nodes.{{ $root.Release.Namespace }}.svc
{{- end }}

{{- /* The configuration of one node: (list ROOT ID). */ -}}
{{- define "lockkeeper.config" -}}
{{- $root := index . 0 }}{{ $node := index . 1 }}{{ $values := $root.Values -}}
[cluster]
id = {{ $values.cluster | quote }}
node = {{ $node }}
{{- range $at, $member := $values.nodes }}
{{- $host := include "lockkeeper.host" (list $root (add1 $at)) }}

[peers.{{ $member }}]
peer = "{{ $host }}:7101"
client = "{{ $host }}:7001"
{{- if $values.zookeeperPort }}
zookeeper = "{{ $host }}:{{ $values.zookeeperPort }}"
{{- end }}
{{- end }}

[listen]
client = "0.0.0.0:7001"
peer = "0.0.0.0:7101"
{{- if not $values.tls.enabled }}
# Only for a network of pods that is trusted: the network policy protects the peers' port alone, and every pod can
# reach the clients' ports.
insecure = ["client", "peer"{{ if $values.zookeeperPort }}, "zookeeper"{{ end }}]
{{- end }}
{{- if $values.zookeeperPort }}

[zookeeper]
listen = "0.0.0.0:{{ $values.zookeeperPort }}"
{{- end }}
{{- if $values.tls.enabled }}
{{- $listeners := ternary (list "client" "peer" "zookeeper") (list "client" "peer") (ne (int $values.zookeeperPort) 0) }}
{{- range $listeners }}

[tls.{{ . }}]
certificate = "/etc/lockkeeper-tls/node{{ $node }}.pem"
key = "/etc/lockkeeper-tls/node{{ $node }}.key"
authority = "/etc/lockkeeper-tls/authority.pem"
{{- if ne . "peer" }}
# The kubelet's probes show no certificate.
client_certificates = "optional"
{{- end }}
{{- end }}
{{- end }}

[storage]
directory = "/var/lib/lockkeeper/data"

[limits]
state_mib = {{ $values.stateMib }}

{{ $values.extraConfig | trim }}
{{ end }}
