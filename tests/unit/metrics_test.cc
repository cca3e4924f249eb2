// Metrics as Prometheus reads them.

#include "base/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace unreft {
namespace {

using testing::HasSubstr;

TEST(Metrics, CountersGrow) {
  Metrics metrics;
  Counter bytes = metrics.NewCounter("unreft_captured_bytes_total", "Bytes captured");
  bytes.Add();
  bytes.Add(1024);
  EXPECT_EQ(bytes.value(), 1025);
  EXPECT_THAT(metrics.Text(), HasSubstr("# HELP unreft_captured_bytes_total Bytes captured\n"
                                        "# TYPE unreft_captured_bytes_total counter\n"
                                        "unreft_captured_bytes_total 1025\n"));
}

TEST(Metrics, GaugesMoveAndLabelsTellThemApart) {
  Metrics metrics;
  Gauge one = metrics.NewGauge("unreft_slots", "Slots by state", {{"state", "sealed"}});
  Gauge two = metrics.NewGauge("unreft_slots", "Slots by state", {{"state", "free"}});
  one.Set(3);
  two.Add(2);
  two.Add(-1);
  const std::string text = metrics.Text();
  EXPECT_THAT(text, HasSubstr("unreft_slots{state=\"sealed\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("unreft_slots{state=\"free\"} 1\n"));
}

TEST(Metrics, AskingAgainGivesTheSame) {
  Metrics metrics;
  metrics.NewCounter("unreft_skips_total", "Skipped", {{"why", "busy"}}).Add(2);
  metrics.NewCounter("unreft_skips_total", "Skipped", {{"why", "busy"}}).Add(3);
  EXPECT_THAT(metrics.Text(), HasSubstr("unreft_skips_total{why=\"busy\"} 5\n"));
}

TEST(Metrics, HistogramsCountByBucket) {
  Metrics metrics;
  Histogram wait = metrics.NewHistogram("unreft_fence_seconds", "Fence", {0.001, 1});
  wait.Observe(0.0005);
  wait.Observe(0.5);
  wait.Observe(100);
  const std::string text = metrics.Text();
  EXPECT_THAT(text, HasSubstr("unreft_fence_seconds_bucket{le=\"0.001\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("unreft_fence_seconds_bucket{le=\"1\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("unreft_fence_seconds_bucket{le=\"+Inf\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("unreft_fence_seconds_count 3\n"));
}

TEST(Metrics, RegistriesAreApart) {
  Metrics one;
  Metrics two;
  one.NewCounter("unreft_x_total", "X").Add();
  EXPECT_EQ(two.Text(), "");
}

TEST(Metrics, DurationBoundsAscend) {
  const auto bounds = DurationBounds();
  EXPECT_TRUE(std::is_sorted(bounds.begin(), bounds.end()));
}

TEST(MetricsDeathTest, BadNamesAreCaught) {
  Metrics metrics;
  EXPECT_DEATH(metrics.NewCounter("not a name", "X"), "not a name");
  metrics.NewCounter("unreft_x_total", "X");
  EXPECT_DEATH(metrics.NewGauge("unreft_x_total", "X"), "unreft_x_total");
}

}  // namespace
}  // namespace unreft
