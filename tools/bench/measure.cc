#include "tools/bench/measure.h"

#include <algorithm>
#include <chrono>
#include <ctime>

namespace unreft::bench {
namespace {

double ThreadSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

Seconds Measure(const Body& body) {
  body.before();
  const double cpu_begin = ThreadSeconds();
  const auto begin = std::chrono::steady_clock::now();
  body.timed();
  const auto end = std::chrono::steady_clock::now();
  const double cpu_end = ThreadSeconds();
  body.after();
  return {std::chrono::duration<double>(end - begin).count(), cpu_end - cpu_begin};
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace

std::vector<Seconds> MedianSeconds(int repetitions, const std::vector<Body>& bodies) {
  std::vector<std::vector<double>> wall(bodies.size());
  std::vector<std::vector<double>> cpu(bodies.size());
  for (int round = 0; round <= repetitions; ++round) {
    for (size_t i = 0; i < bodies.size(); ++i) {
      const Seconds taken = Measure(bodies[i]);
      if (round == 0) continue;
      wall[i].push_back(taken.wall);
      cpu[i].push_back(taken.cpu);
    }
  }
  std::vector<Seconds> medians;
  for (size_t i = 0; i < bodies.size(); ++i) {
    medians.push_back({Median(std::move(wall[i])), Median(std::move(cpu[i]))});
  }
  return medians;
}

}  // namespace unreft::bench
