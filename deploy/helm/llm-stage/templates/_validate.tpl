{{- /* Checks that the values schema cannot express. All errors are reported at once. */ -}}
{{- define "llm-stage.validate" -}}
{{- $errors := list }}
{{- $c := .Values.config }}
{{- $own := include "llm-stage.ownEnvironment" . | fromYaml }}
{{- $elsewhere := or .Values.extraEnv .Values.extraEnvFrom }}

{{- if and .Values.releases (not (hasKey .Values.releases .Release.Name)) }}
{{- $errors = append $errors (printf "releases: this release is %s, none of %s: name the release after its stage" .Release.Name (keys .Values.releases | sortAlpha | join ", ")) }}
{{- end }}
{{- if not .Values.nats.url }}
{{- $errors = append $errors "nats.url: give the URL of the NATS server, such as nats://nats.nats:4222" }}
{{- end }}
{{- if contains "@" .Values.nats.url }}
{{- $errors = append $errors "nats.url: contains a user, password or token: remove it, and name a Secret in nats.existingSecret" }}
{{- end }}
{{- if and .Values.nats.existingSecret (not (or .Values.nats.keys.creds .Values.nats.keys.nkey .Values.nats.keys.token .Values.nats.keys.password)) }}
{{- $errors = append $errors "nats.existingSecret: name the key to use in nats.keys: creds, nkey, token or password" }}
{{- end }}
{{- if and (not .Values.nats.existingSecret) (or .Values.nats.keys.creds .Values.nats.keys.nkey .Values.nats.keys.token .Values.nats.keys.password) }}
{{- $errors = append $errors "nats.keys: name the Secret that contains them in nats.existingSecret" }}
{{- end }}

{{- range $name := list "STAGE_NATS_TOKEN" "STAGE_NATS_PASSWORD" }}
{{- if hasKey $c $name }}
{{- $errors = append $errors (printf "config.%s: a secret does not belong in a ConfigMap: put it into a Secret, and name the Secret in nats.existingSecret" $name) }}
{{- end }}
{{- end }}
{{- range $name, $_ := $c }}
{{- if regexMatch "^STAGE_LLM_.*API_KEY$" $name }}
{{- $errors = append $errors (printf "config.%s: a secret does not belong in a ConfigMap: put it into a Secret, and name the Secret in llm.existingSecret or llm.providers" $name) }}
{{- else if hasKey $own $name }}
{{- $by := dict "STAGE_NATS_URL" "nats.url" "STAGE_HTTP_ADDR" "http.port" "STAGE_HTTP_HOSTS" "http.hosts" "STAGE_TEMPLATE_FILE" "template" "STAGE_LOOKUP_FILE" "lookup" "STAGE_RESPONSE_SCHEMA_FILE" "responseSchema" "STAGE_PRICES_FILE" "prices" }}
{{- $errors = append $errors (printf "config.%s: the chart sets it from %s: unset one of them" $name (get $by $name | default (ternary "nats" "llm" (hasPrefix "STAGE_NATS" $name)))) }}
{{- end }}
{{- end }}

{{- range $value, $f := include "llm-stage.files" . | fromYaml }}
{{- with get $.Values $value }}
{{- if and .content .existingConfigMap }}
{{- $errors = append $errors (printf "%s: both content and existingConfigMap are set: unset one of them" $value) }}
{{- end }}
{{- end }}
{{- end }}
{{- $templates := 0 }}
{{- range list (hasKey $own "STAGE_TEMPLATE_FILE") $c.STAGE_TEMPLATE $c.STAGE_TEMPLATE_FILE }}{{ if . }}{{ $templates = add1 $templates }}{{ end }}{{ end }}
{{- if and (eq (int $templates) 0) (not $elsewhere) }}
{{- $errors = append $errors "template: give the template of the prompt in template.content, or a ConfigMap in template.existingConfigMap" }}
{{- end }}
{{- if and (gt (int $templates) 1) (not (and (hasKey $own "STAGE_TEMPLATE_FILE") $c.STAGE_TEMPLATE_FILE (not $c.STAGE_TEMPLATE))) }}
{{- $errors = append $errors "template: more than one of template, config.STAGE_TEMPLATE and config.STAGE_TEMPLATE_FILE is set: keep one" }}
{{- end }}

{{- $provider := $c.STAGE_LLM_PROVIDER | default "openai" }}
{{- if and (ne $provider "mock") (not $c.STAGE_LLM_MODEL) (not $elsewhere) }}
{{- $errors = append $errors "config.STAGE_LLM_MODEL: give the model to call" }}
{{- end }}
{{- $keyed := or .Values.llm.existingSecret $c.STAGE_LLM_API_KEY_FILE (hasKey .Values.llm.providers $provider) }}
{{- $keyless := or (eq $provider "mock") (and (hasPrefix "openai" $provider) $c.STAGE_LLM_BASE_URL) }}
{{- if not (or $keyed $keyless $elsewhere) }}
{{- $errors = append $errors (printf "llm.existingSecret: name the Secret with the API key of %s" $provider) }}
{{- end }}

{{- if and $c.STAGE_BUDGET (eq ($c.STAGE_THROTTLE | default "adaptive") "classic") }}
{{- $errors = append $errors "config.STAGE_BUDGET: the classic throttle cannot be shared: set config.STAGE_THROTTLE to adaptive, or unset one" }}
{{- end }}

{{- $partitions := include "llm-stage.partitions" . | int64 }}
{{- if and (gt $partitions 1) (not (contains "{partition}" ($c.STAGE_INPUT_SUBJECT | default "rows.>"))) }}
{{- $errors = append $errors (printf "config.STAGE_INPUT_SUBJECT: has no {partition}: with %d partitions write it as rows.{partition}.>" $partitions) }}
{{- end }}

{{- with include "llm-stage.windowRoom" . }}
{{- $room := int64 . }}
{{- $window := include "llm-stage.bytes" ($c.STAGE_WINDOW_BYTES | default "1MiB") | int64 }}
{{- if gt $window $room }}
{{- $pool := include "llm-stage.text" ($c.STAGE_POOL_SIZE | default 1) | int64 }}
{{- $need := addf (mulf 1.0625 $partitions $window) 20971520 (mul 131072 $pool) }}
{{- $errors = append $errors (printf "resources.limits.memory: %s has no room for the windows of a pod that serves all partitions, %d of %s each: raise it to %dMi%s" (include "llm-stage.text" $.Values.resources.limits.memory) $partitions (include "llm-stage.text" ($c.STAGE_WINDOW_BYTES | default "1MiB")) (divf $need 943718.4 | ceil | int64) (ge $room 1048576 | ternary (printf ", or lower config.STAGE_WINDOW_BYTES to %dMiB" (div $room 1048576)) "")) }}
{{- end }}
{{- end }}

{{- if .Values.keda.enabled }}
{{- if gt (include "llm-stage.maxReplicas" . | int64) (add1 $partitions) }}
{{- $errors = append $errors (printf "keda.maxReplicas: %d is more than STAGE_PARTITIONS plus a standby, %d: the others would stay idle" (int64 .Values.keda.maxReplicas) (add1 $partitions)) }}
{{- end }}
{{- if gt (int64 .Values.keda.minReplicas) (include "llm-stage.maxReplicas" . | int64) }}
{{- $errors = append $errors (printf "keda.minReplicas: %d is above keda.maxReplicas" (int64 .Values.keda.minReplicas)) }}
{{- end }}
{{- if and (not .Values.keda.triggers) (not .Values.keda.natsMonitoringEndpoint) }}
{{- $errors = append $errors "keda.natsMonitoringEndpoint: give host:port of the NATS servers' monitoring endpoint, such as nats.nats.svc:8222" }}
{{- end }}
{{- if and (not .Values.keda.triggers) (gt $partitions 64) }}
{{- $errors = append $errors (printf "keda.triggers: with %d partitions KEDA would query NATS for each: give one trigger of your own, such as sum(llm_stage_pending_rows) from Prometheus" $partitions) }}
{{- end }}
{{- end }}

{{- if $errors }}
{{- fail (printf "values of llm-stage:\n  - %s\n" (join "\n  - " $errors)) }}
{{- end }}
{{- end }}
