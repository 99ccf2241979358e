# Reports a diverging loss, then its step as a float and as text, as other programs write it.
report() {
  printf '%s\n' "$1" > "$ROUNDHOUSE_PROGRESS_FILE.new"
  mv "$ROUNDHOUSE_PROGRESS_FILE.new" "$ROUNDHOUSE_PROGRESS_FILE"
  sleep 0.5
}
for step in 1 2 3 4 5 6 7 8; do report "{\"step\": $step, \"totalSteps\": 24, \"loss\": NaN}"; done
for step in 9 10 11 12 13 14 15 16; do report "{\"step\": $step.0, \"totalSteps\": 24, \"loss\": -Infinity}"; done
for step in 17 18 19 20 21 22 23; do report "{\"step\": \"$step\", \"totalSteps\": 24}"; done
report '{"epoch": 3}'
report '{"epoch": 4}'
