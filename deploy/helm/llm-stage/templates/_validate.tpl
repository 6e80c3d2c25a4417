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
{{- $by := dict "STAGE_NATS_URL" "nats.url" "STAGE_HTTP_ADDR" "http.port" "STAGE_HTTP_HOSTS" "http.hosts" "STAGE_CONTROL" "control.enabled" "STAGE_TEMPLATE_FILE" "template" "STAGE_MESSAGES_FILE" "messages" "STAGE_LOOKUP_FILE" "lookup" "STAGE_RESPONSE_SCHEMA_FILE" "responseSchema" "STAGE_PRICES_FILE" "prices" }}
{{- $errors = append $errors (printf "config.%s: the chart sets it from %s: unset one of them" $name (get $by $name | default (ternary "nats" "llm" (hasPrefix "STAGE_NATS" $name)))) }}
{{- end }}
{{- end }}

{{- range $scope := (include "llm-stage.scopes" . | fromYaml).scopes }}
{{- $of := ternary (printf "stages.%s." $scope.name) "" (ne $scope.name "") }}
{{- range $value, $f := include "llm-stage.files" $ | fromYaml }}
{{- with get $scope.values $value }}
{{- if and .content .existingConfigMap }}
{{- $errors = append $errors (printf "%s%s: both content and existingConfigMap are set: unset one of them" $of $value) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- $stages := include "llm-stage.stages" . | fromYaml }}
{{- $paths := include "llm-stage.pathsOf" . | fromYaml }}
{{- if and $stages $c.STAGE_NAME }}
{{- $errors = append $errors "config.STAGE_NAME: the stages have the names of their keys in stages: unset it" }}
{{- end }}
{{- range $name, $stage := $stages }}
{{- range $variable, $_ := $stage.config }}
{{- $where := printf "stages.%s.config.%s" $name $variable }}
{{- if eq $variable "STAGE_NAME" }}
{{- $errors = append $errors (printf "%s: the stage has the name of its key, %s: unset it" $where $name) }}
{{- else if regexMatch "^STAGE_LLM_.*API_KEY$" $variable }}
{{- $errors = append $errors (printf "%s: a secret does not belong in a ConfigMap: put it into a Secret, and name the Secret in stages.%s.llm" $where $name) }}
{{- else if regexMatch "^STAGE_((NATS|DATA|HTTP|DASHBOARD|LOG|STOP)_|CONTROL$)" $variable }}
{{- $errors = append $errors (printf "%s: it belongs to the process, which all stages share: move it to config" $where) }}
{{- else if hasKey (get $paths $name) $variable }}
{{- $errors = append $errors (printf "%s: the chart sets it from other values of the stage: unset one of them" $where) }}
{{- end }}
{{- end }}
{{- end }}

{{- $partitions := include "llm-stage.allPartitions" . | int64 }}
{{- range $name, $c := include "llm-stage.configs" . | fromYaml }}
{{- $of := "" }}
{{- $own := $own }}
{{- $sources := list "STAGE_TEMPLATE" "STAGE_TEMPLATE_FILE" "STAGE_MESSAGES_FILE" "STAGE_MESSAGES_FIELD" "STAGE_REQUEST_FIELD" }}
{{- $llm := list $.Values.llm }}
{{- if $name }}
{{- $of = printf "stages.%s." $name }}
{{- $stage := get $stages $name }}
{{- $llm = append $llm ($stage.llm | default dict) }}
{{- /* A prompt of the stage, from whatever value, takes the place of the one of all. */ -}}
{{- $its := get $paths $name | default dict }}
{{- $set := $stage.config | default dict }}
{{- if or $its.STAGE_TEMPLATE_FILE $its.STAGE_MESSAGES_FILE $set.STAGE_TEMPLATE $set.STAGE_TEMPLATE_FILE $set.STAGE_MESSAGES_FILE $set.STAGE_MESSAGES_FIELD $set.STAGE_REQUEST_FIELD }}
{{- $own = $its }}
{{- range $source := $sources }}{{ $c = omit $c $source }}{{ with get $set $source }}{{ $_ := set $c $source . }}{{ end }}{{ end }}
{{- end }}
{{- end }}
{{- $templates := 0 }}
{{- range list (hasKey $own "STAGE_TEMPLATE_FILE") (hasKey $own "STAGE_MESSAGES_FILE") $c.STAGE_TEMPLATE $c.STAGE_TEMPLATE_FILE $c.STAGE_MESSAGES_FILE $c.STAGE_MESSAGES_FIELD $c.STAGE_REQUEST_FIELD }}{{ if . }}{{ $templates = add1 $templates }}{{ end }}{{ end }}
{{- if and (eq (int $templates) 0) (not $elsewhere) }}
{{- $errors = append $errors (printf "%[1]stemplate: give the template of the prompt in %[1]stemplate.content, or a ConfigMap in %[1]stemplate.existingConfigMap; or a conversation in %[1]smessages" $of) }}
{{- end }}
{{- /* What the chart itself sets of config is complained about above. */ -}}
{{- range $source := list "STAGE_TEMPLATE_FILE" "STAGE_MESSAGES_FILE" }}{{ if and (hasKey $own $source) (get $c $source) }}{{ $templates = sub (int $templates) 1 }}{{ end }}{{ end }}
{{- if gt (int $templates) 1 }}
{{- $errors = append $errors (printf "%[1]stemplate: more than one of template, messages, config.STAGE_TEMPLATE, config.STAGE_TEMPLATE_FILE, config.STAGE_MESSAGES_FILE, config.STAGE_MESSAGES_FIELD and config.STAGE_REQUEST_FIELD is set: keep one" $of) }}
{{- end }}

{{- $provider := $c.STAGE_LLM_PROVIDER | default "openai" }}
{{- if and (ne $provider "mock") (not $c.STAGE_LLM_MODEL) (not $elsewhere) }}
{{- $errors = append $errors (printf "%sconfig.STAGE_LLM_MODEL: give the model to call" $of) }}
{{- end }}
{{- $keyed := $c.STAGE_LLM_API_KEY_FILE }}
{{- range $llm }}{{ if or .existingSecret (hasKey (.providers | default dict) $provider) }}{{ $keyed = true }}{{ end }}{{ end }}
{{- $keyless := or (eq $provider "mock") (and (hasPrefix "openai" $provider) $c.STAGE_LLM_BASE_URL) }}
{{- if not (or $keyed $keyless $elsewhere) }}
{{- $errors = append $errors (printf "%sllm.existingSecret: name the Secret with the API key of %s" $of $provider) }}
{{- end }}

{{- if and $c.STAGE_BUDGET (eq ($c.STAGE_THROTTLE | default "adaptive") "classic") }}
{{- $errors = append $errors (printf "%[1]sconfig.STAGE_BUDGET: the classic throttle cannot be shared: set %[1]sconfig.STAGE_THROTTLE to adaptive, or unset one" $of) }}
{{- end }}

{{- $partitions := include "llm-stage.text" ($c.STAGE_PARTITIONS | default 1) | int64 }}
{{- if and (gt $partitions 1) (not (contains "{partition}" ($c.STAGE_INPUT_SUBJECT | default "rows.>"))) }}
{{- $errors = append $errors (printf "%sconfig.STAGE_INPUT_SUBJECT: has no {partition}: with %d partitions write it as rows.{partition}.>" $of $partitions) }}
{{- end }}
{{- end }}

{{- with include "llm-stage.windowRoom" . }}
{{- $room := int64 . }}
{{- $memory := include "llm-stage.memory" $ | fromYaml }}
{{- $shared := int64 $memory.partitions }}
{{- $text := include "llm-stage.text" ($c.STAGE_WINDOW_BYTES | default "1MiB") }}
{{- $window := mul (include "llm-stage.bytes" $text | int64) (min 1 $shared) }}
{{- if gt $window $room }}
{{- $need := addf (mulf 1.0625 $shared $window) (float64 $memory.fixed) }}
{{- $of := printf "%d of %s each" $shared $text }}
{{- if $stages }}{{ $of = printf "%d of %s each and those that stages have of their own" $shared $text }}{{ end }}
{{- $errors = append $errors (printf "resources.limits.memory: %s has no room for the windows of a pod that serves all partitions, %s: raise it to %dMi%s" (include "llm-stage.text" $.Values.resources.limits.memory) $of (divf $need 943718.4 | ceil | int64) (and (gt $shared 0) (ge $room 1048576) | ternary (printf ", or lower config.STAGE_WINDOW_BYTES to %dMiB" (div $room 1048576)) "")) }}
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
{{- $errors = append $errors "keda.natsMonitoringEndpoint: give host:port of the NATS servers' monitoring endpoint, such as nats-headless.nats.svc:8222" }}
{{- end }}
{{- if and .Values.keda.triggers (.Values.keda.prometheus).serverAddress }}
{{- $errors = append $errors "keda.prometheus.serverAddress: keda.triggers replaces the chart's triggers, this one too: unset one of them" }}
{{- end }}
{{- if and (not .Values.keda.triggers) (gt $partitions 64) }}
{{- $errors = append $errors (printf "keda.triggers: with %d partitions KEDA would query NATS for each: give one trigger of your own, such as sum(llm_stage_pending_rows) from Prometheus" $partitions) }}
{{- end }}
{{- end }}

{{- if $errors }}
{{- fail (printf "values of llm-stage:\n  - %s\n" (join "\n  - " $errors)) }}
{{- end }}
{{- end }}
