{{- define "portwarden.labels" -}}
app.kubernetes.io/name: portwarden
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "portwarden.selector" -}}
app.kubernetes.io/name: portwarden
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Whether the mode runs the iptables programs; empty if not. */}}
{{- define "portwarden.iptables" -}}
{{- if or (eq .Values.mode "iptables") (eq .Values.mode "ipvs") }}true{{ end }}
{{- end }}

{{- define "portwarden.image" -}}
{{- $suffix := ternary "-iptables" "" (eq (include "portwarden.iptables" .) "true") -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default (printf "%s%s" .Chart.AppVersion $suffix) }}
{{- end }}

{{- define "portwarden.metricsBindAddress" -}}
{{- $default := ternary "0.0.0.0:10249" "127.0.0.1:10249" .Values.monitoring.serviceMonitor.enabled -}}
{{ .Values.monitoring.metricsBindAddress | default $default }}
{{- end }}

{{/* With takeOver, kube-proxy's own folder: its configuration names a kubeconfig file in it. */}}
{{- define "portwarden.configFolder" -}}
{{ ternary "/var/lib/kube-proxy" "/etc/portwarden" .Values.takeOver.enabled }}
{{- end }}
